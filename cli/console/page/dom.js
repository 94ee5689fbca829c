// Builds and updates the page. Texts become text nodes, never markup, so no name or metadata can do anything.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

// Makes `present` look like `wanted` and keeps what is equal: focus, selection and inputs survive an update.
export function patch(present, wanted) {
  const old = [...present.childNodes], fresh = [...wanted];
  fresh.forEach((next, at) => {
    const node = old[at];
    if (!node) present.append(next);
    else if (node.nodeType !== next.nodeType || node.nodeName !== next.nodeName || node.id !== next.id) node.replaceWith(next);
    else if (node.nodeType === Node.TEXT_NODE) { if (node.data !== next.data) node.data = next.data; }
    else patchElement(node, next);
  });
  old.slice(fresh.length).forEach((node) => node.remove());
}

function patchElement(node, next) {
  for (const { name } of [...node.attributes]) if (!next.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of [...next.attributes]) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  for (const handler of ["onclick", "onsubmit", "onchange", "oninput"]) node[handler] = next[handler];
  patch(node, [...next.childNodes]);
}

// A text that a client chose: isolated from the direction of the text around it, and not endless.
export function foreign(text, longest = 2000) {
  const shown = text.length > longest ? `${text.slice(0, longest)} … (${count(text.length)} characters)` : text;
  return h("bdi", { class: "value" }, shown.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, "\ufffd"));
}

export function table(caption, columns, rows, empty = "None.") {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  return h("table", {},
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((column) =>
      h("th", { scope: "col", class: column.number ? "number" : null }, column.title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((column, at) => {
      const classes = [column.number && "number", column.nowrap && "nowrap"].filter(Boolean).join(" ") || null;
      return at === 0 ? h("th", { scope: "row", class: classes }, row[at]) : h("td", { class: classes }, row[at]);
    })))));
}

export const number = (title) => ({ title, number: true });
export const column = (title) => ({ title });
export const narrow = (title) => ({ title, nowrap: true });

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function cards(pairs) {
  return h("dl", { class: "cards" }, pairs.map(([name, value, note]) =>
    h("div", { class: "card" }, h("dt", {}, name), h("dd", {}, value, note && [" ", h("small", {}, note)]))));
}

const KIND = { writable: "good", closed: "good", ordinary: "good", "read-only": "warn", draining: "warn", held: "warn",
  missing: "warn", doubtful: "warn", open: "quiet", "at-rest": "good", "in-recovery": "warn" };

export const state = (name) => h("span", { class: `state ${KIND[name] ?? "bad"}` }, name);

// --- numbers ---

export const count = (value) => value === null || value === undefined ? "–"
  : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 && at ? 1 : 0 })} ${units[at]}`;
}

// A bucket's upper bound: two digits say all that it knows.
export function latency(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(2))} ms` : `${Number(seconds.toPrecision(2))} s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const clock = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
