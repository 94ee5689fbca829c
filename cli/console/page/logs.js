import { get, query } from "./api.js";
import { bytes, column, count, duration, facts, foreign, h, narrow, number, table } from "./dom.js";

let prefix = "";

export async function logsPage(state, again) {
  const page = await get(`/api/logs${query({ prefix })}`);
  return [
    h("h1", {}, "Logs"),
    h("form", { class: "filter", onsubmit: (event) => { event.preventDefault(); prefix = event.target.elements.prefix.value; again(); } },
      h("label", {}, "Names that begin with", h("input", { name: "prefix", size: 24, maxlength: 255 })), h("button", {}, "Show")),
    h("section", { class: "panel" }, table(null,
      [column("Log"), column("Leader"), number("First"), number("End"), number("Adds/s"), number("Closed segments"), number("Behind"), narrow("Age")],
      page.items.map((log) => [h("a", { href: `#/logs/${encodeURIComponent(log.name)}` }, log.name),
        log.sealed ? "sealed" : log.leader === null ? "–" : foreign(log.leader, 60),
        count(log.first_position), `${count(log.end)}${log.end_is_known ? "" : "+"}`, count(log.adds_per_second), bytes(log.bytes),
        log.lag === null ? "–" : [count(log.lag), h("br"), h("small", { class: "quiet" }, foreign(log.slowest_cursor, 40))],
        duration(log.age_seconds)]), "No log fits.")),
    h("p", { class: "quiet" }, "Behind: entries that the slowest cursor has not passed. A + after an end: a leader is adding, and its bookies do not tell this console how much."),
    page.more ? h("p", { class: "quiet" }, `There are more logs than these ${page.shown_max}; narrow the list by the beginning of their names.`) : null,
  ];
}

export async function logPage(state, again, name) {
  const log = await get(`/api/logs/${encodeURIComponent(name)}`);
  const keeps = [];
  if (log.retention.seconds !== null) keeps.push(`${count(log.retention.seconds)} seconds`);
  if (log.retention.bytes !== null) keeps.push(bytes(log.retention.bytes));
  if (log.retention.cursors) keeps.push("what a cursor still needs");
  return [
    h("h1", {}, `Log ${log.name}`),
    h("p", {}, h("a", { href: `#/entries/${encodeURIComponent(log.name)}` }, "Entries"),
      log.layout === "stream" && log.segments.length ? [" · ", h("a", { href: `#/ledgers/${log.segments[0].ledger_id}` }, `Ledger ${log.segments[0].ledger_id}, a picture of its fragments over the bookies`)] : null),
    h("section", { class: "panel" }, facts([
      ["Leader", log.sealed ? "none; the log is sealed" : log.leader === null ? h("span", { class: "warn" }, "none") : foreign(log.leader)],
      ["Layout", log.layout],
      ["Positions", `${count(log.first_position)} to ${count(log.end)}${log.end_is_known ? "" : ", and on: the log has a password, or this console has not the role read, so the end is not known here"}`],
      ["Term", count(log.term)], ["Closed segments", bytes(log.bytes)],
      ["Shape", `ensemble ${log.quorums[0]}, write quorum ${log.quorums[1]}, ack quorum ${log.quorums[2]}`],
      ["Keeps", keeps.join(", ") || "everything"],
      log.full_copies === null ? null : ["Full copies", `${log.full_copies}${log.segments.some((one) => one.owed) ? "; some entries may lack copies" : ""}`],
      log.gaps.length ? ["Given up", log.gaps.map(([first, last]) => `${first} to ${last}`).join(", ")] : null,
    ])),
    h("section", { class: "panel" }, h("h2", {}, "Cursors"), table(null,
      [column("Cursor"), number("Position"), number("Behind"), column("Last heard of")],
      log.cursors.map((one) => [foreign(one.name), count(one.position), count(one.behind), one.touched_at.slice(0, 19).replace("T", " ")]))),
    h("section", { class: "panel" }, h("h2", {}, "Segments"),
      log.paged_segments ? h("p", { class: "quiet" }, `${count(log.paged_segments)} older segments are not shown.`) : null,
      log.layout === "stream" ? streamSegments(log) : chainSegments(log)),
  ];
}

const owed = (one) => one.owed === null ? "-" : `${count(one.owed[0])} to ${count(one.owed[1])}`;
const quorums = (one) => one.quorums === null ? "" : one.quorums.join("/");
const created = (one) => one.created_at.slice(0, 19).replace("T", " ");

// All segments of a stream are of one ledger: what tells them apart is where they lie.
function streamSegments(log) {
  const copies = log.full_copies !== null;
  return table(null, [narrow("Positions"), number("Payload"), number("Term"), narrow("E/Qw/Qa"), column("Bookies"), column("Created"), ...(copies ? [column("Owes copies of")] : [])],
    [...log.segments].reverse().map((one) => [
      one.entries === null ? `${count(one.first_position)} and on` : `${count(one.first_position)} to ${count(one.first_position + one.entries - 1)}`,
      bytes(one.bytes), count(one.term), quorums(one), one.bookies.map((name) => [foreign(name), " "]), created(one), ...(copies ? [owed(one)] : [])]));
}

function chainSegments(log) {
  return table(null, [narrow("Ledger"), number("First position"), number("Entries"), number("Payload"), number("Term"), column("Created")],
    [...log.segments].reverse().map((one) => [h("a", { href: `#/ledgers/${one.ledger_id}` }, String(one.ledger_id)),
      count(one.first_position), one.entries === null ? "being written" : count(one.entries), bytes(one.bytes), count(one.term), created(one)]));
}
