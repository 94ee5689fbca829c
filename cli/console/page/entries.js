// A page of the entries of one log: the newest ones, or those from a position or a time on, or those that hold a text
// or have a JSON field.

import { get, query, Refused } from "./api.js";
import { bytes, column, count, foreign, h, narrow, number, table } from "./dom.js";
import { formChoice, shownPayload } from "./payload.js";

const COUNT = 50;

// What is asked for, and the last answer: entries never change, so only the newest ones are asked for again.
let asked = null, answered = null;

const nothing = { first: "", at: "", contains: "", field: "", last: "" };
const isNewest = () => Object.keys(nothing).every((key) => asked[key] === "");

// What was asked for wrongly is said on the page, so that it can be asked for again.
async function found(request) {
  try { return await get(request); } catch (error) {
    if (!(error instanceof Refused) || error.status === 0 || error.status >= 500) throw error;
    return { first_position: 0, end: 0, from: 0, searched: 0, items: [], next: null, error: error.message };
  }
}

export async function entriesPage(state, again, name) {
  const title = [h("h1", {}, "Entries of ", h("a", { href: `#/logs/${encodeURIComponent(name)}` }, name))];
  if (!state.entries) {
    return [...title, h("p", {}, "This console shows no entries. Start it with ", h("code", {}, "octavo console --entries"),
      "; then all who have its address with the token can read the logs that have no password.")];
  }
  if (asked?.name !== name) asked = { ...nothing, name };
  const request = `/api/logs/${encodeURIComponent(name)}/entries${query({ first: asked.first, last: asked.last, at: asked.at, contains: asked.contains, field: asked.field, count: COUNT })}`;
  if (answered?.request !== request || isNewest()) answered = { request, page: await found(request) };
  const { page } = answered;
  const searched = [asked.contains, asked.field].filter((text) => text !== "").join(", ");
  const ask = (changes) => { asked = { ...nothing, name, ...changes }; again(); };
  const next = page.items.length ? page.items.at(-1).position + 1 : page.from;
  const button = (text, changes, disabled) => [h("button", { type: "button", disabled, onclick: () => ask(changes) }, text), " "];
  return [
    ...title,
    h("form", { class: "filter", onsubmit: (event) => {
      event.preventDefault();
      const { first, last, at, contains, field } = event.target.elements;
      const searches = contains.value !== "" || field.value !== "";
      ask({ first: first.value, last: last.value, at: at.value, contains: contains.value, field: field.value, ...(searches && first.value === "" && at.value === "" ? { first: String(page.first_position) } : {}) });
    } },
    h("label", {}, "From position", h("input", { name: "first", inputmode: "numeric", pattern: "[0-9]*", size: 12 })),
    h("label", {}, "or from time", h("input", { name: "at", size: 18, maxlength: 64, placeholder: "10m or 2026-01-31T12:00" })),
    h("label", {}, "to position", h("input", { name: "last", inputmode: "numeric", pattern: "[0-9]*", size: 12 })),
    h("label", {}, "that hold the text", h("input", { name: "contains", size: 18, maxlength: 200 })),
    h("label", {}, "whose JSON has", h("input", { name: "field", size: 18, maxlength: 200, placeholder: "customer.id = 17" })),
    h("button", {}, "Show"),
    formChoice("Payload as", again)),
    h("p", {},
      button("Oldest", { first: String(page.first_position) }, page.from <= page.first_position),
      button("Older", { first: String(Math.max(page.first_position, page.from - COUNT)), contains: "" }, page.from <= page.first_position),
      button("Newer", { first: String(next), contains: asked.contains, field: asked.field, last: asked.last }, next >= page.end),
      button("Newest", {}, isNewest())),
    h("p", { class: "quiet" }, `Positions ${count(page.first_position)} to ${count(page.end)}. `,
      searched === "" ? null : [`Searched ${count(page.searched)} entries for `, foreign(searched), ". "],
      isNewest() ? "The newest entries; they follow the log." : null),
    h("section", { class: "panel" }, table(null, [number("Position"), narrow("Added"), number("Term"), number("Size"), column("Payload")],
      page.items.map((one) => [String(one.position), one.sealed_at.slice(0, 23).replace("T", " "), count(one.term), bytes(one.bytes), shownPayload(one.payload, one.bytes)]),
      "No entry fits.")),
    page.error === null ? null : h("p", { class: "bad" }, page.error),
    page.next !== null && searched !== "" && page.items.length < COUNT
      ? h("p", {}, button(`Search on from ${count(page.next)}`, { ...asked, first: String(page.next), at: "" }, false)) : null,
  ];
}
