import { bytes, column, count, duration, h, narrow, number, s, state as stateOf, table } from "./dom.js";

function disk(row) {
  if (!row.total_bytes) return "–";
  const used = 1 - row.free_bytes / row.total_bytes;
  const label = `${bytes(row.free_bytes)} of ${bytes(row.total_bytes)} free`;
  return [
    s("svg", { width: 130, height: 10, role: "img", "aria-label": label },
      s("rect", { class: "track", width: 130, height: 10, rx: 4 }),
      s("rect", { class: used > .9 ? "low" : "full", width: Math.max(2, 130 * used), height: 10, rx: 4 })),
    h("small", { class: "quiet" }, label),
  ];
}

export function bookiesPage(state) {
  const rows = state.bookies.map((row) => [
    [row.bookie_id, h("br"), h("small", { class: "quiet" }, row.address)],
    [stateOf(row.state), row.state !== "unavailable" && !row.answers ? h("div", { class: "bad" }, "does not answer") : null],
    [row.condition === "ordinary" ? "–" : stateOf(row.condition), row.in_doubt ? h("div", { class: "warn" }, "in doubt") : null],
    row.rack ?? "–",
    disk(row),
    count(row.entries_added_per_second), bytes(row.bytes_added_per_second),
    count(row.entries_read_per_second), bytes(row.bytes_read_per_second),
    bytes(row.journal_bytes), bytes(row.cache_bytes), count(row.ledgers), count(row.connections),
    row.version ?? "–", duration(row.uptime_seconds),
  ]);
  return [
    h("h1", {}, "Bookies"),
    h("section", { class: "panel" }, table(null,
      [narrow("Bookie"), column("State"), column("Condition"), column("Rack"), narrow("Disk"),
        number("Added/s"), number("In/s"), number("Read/s"), number("Out/s"), number("To replay"), number("Cache"),
        number("Ledgers"), number("Clients"), narrow("Version"), number("Up")], rows, "The cluster has no bookie.")),
  ];
}
