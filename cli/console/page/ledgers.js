import { get, query } from "./api.js";
import { bytes, column, count, facts, foreign, h, narrow, number, s, state as stateOf, table } from "./dom.js";

const filter = { state: "", bookie: "", after: null, before: [] };

export async function ledgersPage(state, again) {
  const page = await get(`/api/ledgers${query({ state: filter.state, bookie: filter.bookie, after: filter.after })}`);
  const option = (value, text, chosen) => h("option", { value, selected: value === chosen }, text);
  const change = (changes) => { Object.assign(filter, changes); again(); };
  return [
    h("h1", {}, "Ledgers"),
    h("form", { class: "filter", onsubmit: (event) => {
      event.preventDefault();
      const id = event.target.elements.id.value;
      if (id !== "") location.hash = `#/ledgers/${id}`;
    } },
    h("label", {}, "Id", h("input", { name: "id", inputmode: "numeric", pattern: "[0-9]+", size: 12 })),
    h("button", {}, "Show"),
    h("label", {}, "State", h("select", { onchange: (event) => change({ state: event.target.value, after: null, before: [] }) },
      option("", "all", filter.state), ["open", "in-recovery", "at-rest", "closed"].map((name) => option(name, name, filter.state)))),
    h("label", {}, "On bookie", h("select", { onchange: (event) => change({ bookie: event.target.value, after: null, before: [] }) },
      option("", "any", filter.bookie), state.bookies.map((row) => option(row.bookie_id, row.bookie_id, filter.bookie))))),
    h("section", { class: "panel" }, table(null,
      [narrow("Ledger"), column("Kind"), column("State"), number("Entries"), number("Payload"), column("Created"), column("Log")],
      page.items.map((one) => [h("a", { href: `#/ledgers/${one.ledger_id}` }, String(one.ledger_id)), one.kind, stateOf(one.state),
        one.entries === null ? "–" : count(one.entries), bytes(one.length), one.created_at.slice(0, 19).replace("T", " "),
        one.log === null ? "–" : foreign(one.log)]),
      "No ledger fits.")),
    h("p", {},
      h("button", { disabled: !filter.before.length, onclick: () => change({ after: filter.before.at(-1), before: filter.before.slice(0, -1) }) }, "Back"), " ",
      h("button", { disabled: page.next === null, onclick: () => change({ after: page.next, before: [...filter.before, filter.after] }) }, "Further")),
  ];
}

const NAME = 190, WIDTH = 900, ROW = 26;

// What users count: positions of a stream, ids of entries of a ledger.
const firstOf = (fragment) => fragment.first_position ?? fragment.first_entry_id;
const lastOf = (ledger) => ledger.kind === "stream" ? ledger.last_position : ledger.last_entry_id;

// One row for each bookie, one bar for each fragment that it is a member of.
function fragmentsPicture(ledger, states) {
  const names = [...new Set(ledger.fragments.flatMap((one) => one.bookies))].sort();
  const parts = ledger.fragments.map((one, at) => {
    const begins = ledger.fragments[at + 1], first = firstOf(one);
    const last = begins !== undefined ? firstOf(begins) - 1 : ledger.entries === null ? null : (lastOf(ledger) ?? first - 1);
    return { ...one, first, last, entries: last === null ? null : last - first + 1 };
  });
  const known = parts.reduce((sum, one) => sum + (one.entries ?? 0), 0);
  // The length of a bar tells the share of the entries, but none is too short to be seen.
  const weights = parts.map((one) => Math.max(one.entries ?? known * .25, known * .02, 1));
  const scale = (WIDTH - NAME) / weights.reduce((sum, one) => sum + one, 0);
  let x = NAME;
  const bars = parts.map((one, at) => {
    const width = weights[at] * scale, left = x;
    x += width;
    const text = one.last === null ? `entries ${one.first} and on, being written`
      : one.entries === 0 ? "no entries" : `entries ${one.first} to ${one.last}`;
    return [
      s("text", { x: left + 2, y: 13, class: "faint" }, String(one.first)),
      one.bookies.map((name) => s("rect", { class: one.last === null ? "open" : at % 2 ? "odd" : "even", x: left + 1,
        y: 20 + names.indexOf(name) * ROW, width: Math.max(1, width - 2), height: ROW - 8, rx: 3 }, s("title", {}, `${name}: ${text}`))),
    ];
  });
  const height = 24 + names.length * ROW;
  const label = `${ledger.fragments.length} fragments over ${names.length} bookies; the table below lists them`;
  return s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
    s("defs", {}, s("pattern", { id: "open", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { class: "odd", width: 8, height: 8 }), s("rect", { class: "even", width: 4, height: 8 }))),
    names.map((name, at) => s("text", { x: 0, y: 20 + at * ROW + 13, class: states.get(name) === "writable" ? null : "gone" },
      `${name.length > 20 ? `${name.slice(0, 19)}…` : name}${["writable", "read-only"].includes(states.get(name)) ? "" : " (gone)"}`)),
    bars);
}

export async function ledgerPage(state, again, id) {
  const ledger = await get(`/api/ledgers/${encodeURIComponent(id)}`);
  const states = new Map(state.bookies.map((row) => [row.bookie_id, row.state]));
  const custom = Object.entries(ledger.custom_metadata);
  const stream = ledger.kind === "stream", last = lastOf(ledger);
  const blocked = (state.repair?.blocked ?? []).filter((one) => one.ledger_id === ledger.ledger_id);
  return [
    h("h1", {}, `${stream ? "Stream" : "Ledger"} ${ledger.ledger_id} `, stateOf(ledger.state)),
    blocked.map((one) => h("p", { class: "bad" }, `Repair is blocked (${one.class}): `, foreign(one.reason))),
    h("section", { class: "panel" }, facts([
      [stream ? "Positions" : "Last entry", last === null ? "–" : stream ? `${count(ledger.first_position)} to ${count(last)}` : count(last)],
      ["Payload", bytes(ledger.length)],
      ledger.log === null ? null : ["Log", h("a", { href: `#/logs/${encodeURIComponent(ledger.log)}` }, foreign(ledger.log))],
      ["Shape", `ensemble ${ledger.ensemble_size}, write quorum ${ledger.write_quorum}, ack quorum ${ledger.ack_quorum}`],
      ["Digest", ledger.digest], ["Created", ledger.created_at.slice(0, 19).replace("T", " ")],
    ])),
    h("section", { class: "panel" }, h("h2", {}, "Fragments over bookies"), fragmentsPicture(ledger, states),
      table(null, [narrow(stream ? "First position" : "First entry"), stream ? number("Term") : null, column("Bookies")].filter(Boolean),
        ledger.fragments.map((one) => [count(firstOf(one)), stream ? count(one.term) : null, one.bookies.join(", ")].filter(Boolean)))),
    h("section", { class: "panel" }, h("h2", {}, "Custom metadata"), table(null, [narrow("Key"), column("Value")],
      custom.map(([key, value]) => [foreign(key), typeof value === "string" ? foreign(value)
        : [h("small", { class: "quiet" }, "base64 "), foreign(value.base64)]]))),
  ];
}
