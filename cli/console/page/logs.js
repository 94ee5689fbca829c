import { get, query } from "./api.js";
import { bytes, column, count, facts, foreign, h, narrow, number, table } from "./dom.js";

let prefix = "";

export async function logsPage(state, again) {
  const page = await get(`/api/logs${query({ prefix })}`);
  return [
    h("h1", {}, "Logs"),
    h("form", { class: "filter", onsubmit: (event) => { event.preventDefault(); prefix = event.target.elements.prefix.value; again(); } },
      h("label", {}, "Names that begin with", h("input", { name: "prefix", size: 24, maxlength: 255 })), h("button", {}, "Show")),
    h("section", { class: "panel" }, table(null, [column("Log")],
      page.items.map((name) => [h("a", { href: `#/logs/${encodeURIComponent(name)}` }, name)]), "No log fits.")),
    page.more ? h("p", { class: "quiet" }, "There are more logs; narrow the list by the beginning of their names.") : null,
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
      table(null, [narrow("Ledger"), number("First position"), number("Entries"), number("Payload"), number("Term"), narrow("E/Qw/Qa"), column("Created"),
          ...(log.full_copies === null ? [] : [column("Owes copies of")])],
        [...log.segments].reverse().map((one) => [h("a", { href: `#/ledgers/${one.ledger_id}` }, String(one.ledger_id)),
          count(one.first_position), one.entries === null ? "being written" : count(one.entries), bytes(one.bytes), count(one.term),
          one.quorums === null ? "" : one.quorums.join("/"), one.created_at.slice(0, 19).replace("T", " "),
          ...(log.full_copies === null ? [] : [one.owed === null ? "-" : `${count(one.owed[0])} to ${count(one.owed[1])}`])]))),
  ];
}
