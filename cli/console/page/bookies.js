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

// How long 99 % of something took at most, and below it half of it.
function times(row, name) {
  const most = row[`${name}_p99_seconds`];
  return most === null ? "–" : [latency(most), small(`half ${latency(row[`${name}_p50_seconds`])}`)];
}

export function bookiesPage(state) {
  const rows = state.bookies.map((row) => [
    [row.bookie_id, small(row.address), row.rack === null ? null : small(`rack ${row.rack}`),
      row.host_id === null ? null : small(`host ${row.host_id}`)],
    [stateOf(row.state), row.condition === "ordinary" ? null : h("div", {}, stateOf(row.condition)),
      row.state !== "unavailable" && !row.answers
        ? h("div", { class: "bad" }, "gives no details", small(row.no_details_because)) : null,
      row.in_doubt ? h("div", { class: "warn" }, "in doubt") : null],
    disk(row),
    [count(row.entries_added_per_second), small(`${bytes(row.bytes_added_per_second)}/s`)],
    times(row, "add"), times(row, "journal_sync"),
    [count(row.entries_read_per_second), small(`${bytes(row.bytes_read_per_second)}/s`)],
    times(row, "read"),
    [bytes(row.journal_bytes), small(`cache ${bytes(row.cache_bytes)}`)],
    count(row.ledgers), count(row.connections), certificate(row, state.now),
    [duration(row.uptime_seconds), row.version === null ? null : small(row.version)],
  ]);
  return [
    h("h1", {}, "Bookies"),
    h("section", { class: "panel" }, table(null,
      [narrow("Bookie"), column("State"), narrow("Disk"), number("Added/s"), number("99 % of adds"),
        number("99 % of syncs"), number("Read/s"), number("99 % of reads"), number("To replay"), number("Ledgers"),
        number("Clients"), narrow("Certificate"), number("Up")], rows, "The cluster has no bookie.")),
    h("p", { class: "quiet" }, `Rates and times are those of the last ${state.interval_seconds} seconds. 99 % took at most the time shown, which is exact to a factor of two.`),
  ];
}
