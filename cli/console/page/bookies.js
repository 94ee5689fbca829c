import { bytes, column, count, duration, h, latency, narrow, number, s, state as stateOf, table } from "./dom.js";

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

const DAY = 86400, DAYS_LOW = 14;

function certificate(row, now) {
  if (!row.certificate_expires_at) return row.tls === "off" ? "no TLS" : "–";
  const left = row.certificate_expires_at - now;
  if (left < 0) return h("span", { class: "bad" }, "has expired");
  return h("span", { class: left < DAYS_LOW * DAY ? "warn" : null }, `${duration(left)} left`);
}

const small = (text) => h("div", {}, h("small", { class: "quiet" }, text));

export function bookiesPage(state) {
  const rows = state.bookies.map((row) => [
    [row.bookie_id, h("br"), h("small", { class: "quiet" }, row.address)],
    [stateOf(row.state), row.state !== "unavailable" && !row.answers ? h("div", { class: "bad" }, "does not answer") : null],
    [row.condition === "ordinary" ? "–" : stateOf(row.condition), row.in_doubt ? h("div", { class: "warn" }, "in doubt") : null],
    row.rack ?? "–",
    disk(row),
    [count(row.entries_added_per_second), small(`${bytes(row.bytes_added_per_second)}/s`)],
    [latency(row.add_p99_seconds), small(`half ${latency(row.add_p50_seconds)}`)],
    [latency(row.journal_sync_p99_seconds), small(`half ${latency(row.journal_sync_p50_seconds)}`)],
    [count(row.entries_read_per_second), small(`${bytes(row.bytes_read_per_second)}/s`)],
    [latency(row.read_p99_seconds), small(`half ${latency(row.read_p50_seconds)}`)],
    bytes(row.journal_bytes), bytes(row.cache_bytes), count(row.ledgers), count(row.connections),
    certificate(row, state.now), row.version ?? "–", duration(row.uptime_seconds),
  ]);
  return [
    h("h1", {}, "Bookies"),
    h("section", { class: "panel" }, table(null,
      [narrow("Bookie"), column("State"), column("Condition"), column("Rack"), narrow("Disk"),
        number("Added/s"), number("99 % of adds"), number("99 % of syncs"), number("Read/s"), number("99 % of reads"),
        number("To replay"), number("Cache"), number("Ledgers"), number("Clients"), narrow("Certificate"),
        narrow("Version"), number("Up")], rows, "The cluster has no bookie.")),
    h("p", { class: "quiet" }, "Times are those of the last two seconds, as upper bounds: exact to a factor of two."),
  ];
}
