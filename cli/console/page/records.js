// A page of the records in one partition of a topic: the newest ones, or those from an offset or a time on.

import { get, query, Refused } from "./api.js";
import { column, count, foreign, h, narrow, number, table } from "./dom.js";
import { formChoice, shownPayload } from "./payload.js";

const COUNT = 50;

// What is asked for, and the last answer: records never change, so only the newest ones are asked for again.
let asked = null, answered = null;

const nothing = { offset: "", at: "" };
const isNewest = () => asked.offset === "" && asked.at === "";

// What was asked for wrongly is said on the page, so that it can be asked for again.
async function found(request) {
  try { return await get(request); } catch (error) {
    if (!(error instanceof Refused) || error.status === 0 || error.status === 404 || error.status >= 500) throw error;
    return { partitions: 1, start_offset: 0, end: 0, items: [], next: null, error: error.message };
  }
}

function time(record) {
  const moment = new Date(record.timestamp_ms);
  return Number.isNaN(moment.getTime()) ? String(record.timestamp_ms) : moment.toISOString().replace("T", " ").replace("Z", "");
}

const part = (value, size) => value === null ? h("span", { class: "quiet" }, "none") : shownPayload(value, size);
const size = (value) => value === null ? 0 : typeof value === "string" ? new TextEncoder().encode(value).length : atob(value.base64).length;

const headers = (record) => [record.headers.map((one) => h("div", {}, part(one.name, size(one.name)), ": ", part(one.value, size(one.value)))),
  record.headers_left_out ? h("p", { class: "quiet" }, `${count(record.headers_left_out)} more`) : null];

const row = (record) => record.trouble !== null
  ? [record.offset === null ? "–" : String(record.offset), "–", "–", h("span", { class: "bad" }, `Position ${record.position} of the log cannot be read: `, foreign(record.trouble)), "–"]
  : [String(record.offset), time(record), part(record.key, record.key_bytes), part(record.value, record.bytes), headers(record)];

export async function recordsPage(state, again, place) {
  const cut = place.lastIndexOf("/"), topic = place.slice(0, cut), partition = place.slice(cut + 1);
  const title = [h("h1", {}, "Records of ", h("a", { href: `#/topics/${encodeURIComponent(topic)}` }, topic), `, partition ${partition}`)];
  if (!state.entries) {
    return [...title, h("p", {}, "This console shows no records. Start it with ", h("code", {}, "octavo console --entries"),
      "; then all who have its address with the token can read the topics that are not private.")];
  }
  if (asked?.place !== place) asked = { ...nothing, place };
  const request = `/api/topics/${encodeURIComponent(topic)}/records${query({ partition, offset: asked.offset, at: asked.at, count: COUNT })}`;
  if (answered?.request !== request || isNewest()) answered = { request, page: await found(request) };
  const { page } = answered;
  const ask = (changes) => { asked = { ...nothing, place, ...changes }; again(); };
  const from = page.items.find((one) => one.offset !== null)?.offset ?? (asked.offset === "" ? page.end : Number(asked.offset));
  const button = (text, changes, disabled) => [h("button", { type: "button", disabled, onclick: () => ask(changes) }, text), " "];
  const option = (at) => h("option", { value: at, selected: String(at) === partition }, String(at));
  return [
    ...title,
    h("form", { class: "filter", onsubmit: (event) => {
      event.preventDefault();
      const { offset, at } = event.target.elements;
      ask({ offset: at.value === "" ? offset.value : "", at: at.value });
    } },
    h("label", {}, "From offset", h("input", { name: "offset", inputmode: "numeric", pattern: "[0-9]*", size: 14 })),
    h("label", {}, "or from time", h("input", { name: "at", size: 24, maxlength: 64, placeholder: "10m or 2026-01-31T12:00" })),
    h("button", {}, "Show"),
    page.partitions > 1 ? h("label", {}, "Partition", h("select", { name: "partition", onchange: (event) => { location.hash = `#/records/${encodeURIComponent(topic)}/${event.target.value}`; } },
      Array.from({ length: page.partitions }, (_, at) => option(at)))) : null,
    formChoice("Keys and values as", again)),
    h("p", {},
      button("Oldest", { offset: String(page.start_offset) }, from <= page.start_offset),
      button("Older", { offset: String(Math.max(page.start_offset, from - COUNT)) }, from <= page.start_offset),
      button("Newer", { offset: String(page.next) }, page.next === null),
      button("Newest", {}, isNewest())),
    h("p", { class: "quiet" }, `Offsets ${count(page.start_offset)} to ${count(page.end)}. `, isNewest() ? "The newest records; they follow the partition. " : null,
      "Times are those that producers gave their records; a search by time goes by when they were added."),
    h("section", { class: "panel" }, table(null, [number("Offset"), narrow("Time (UTC)"), column("Key"), column("Value"), column("Headers")],
      page.items.map(row), "No record fits.")),
    page.error === null ? null : h("p", { class: "bad" }, page.error),
  ];
}
