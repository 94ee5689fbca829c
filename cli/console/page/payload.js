// How a payload is shown: as indented JSON, as text, or by its bytes. One choice for all pages.

import { bytes, foreign, h } from "./dom.js";

const SHOWN = 20000;

let form = "auto";

const DEPTH_MAX = 50;

// Indents JSON without touching its numbers and strings, which a parser might round or normalise. Null: it is too deep.
function indented(text) {
  let depth = 0, out = "", before = "";
  const newLine = () => { out += "\n" + "  ".repeat(depth); };
  const opens = (part) => part === "{" || part === "[";
  for (const part of text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/gs) ?? []) {
    const closes = part === "}" || part === "]";
    if (closes) depth -= 1;
    if (closes ? !opens(before) : opens(before) || before === ",") newLine();
    out += part === ":" ? ": " : part;
    if (opens(part)) depth += 1;
    if (depth > DEPTH_MAX) return null;
    before = part;
  }
  return out;
}

function asJson(text) {
  try { JSON.parse(text); } catch { return null; }
  return /^\s*[{[]/.test(text) ? indented(text) : text;
}

const bytesOf = (payload) => typeof payload === "string" ? new TextEncoder().encode(payload)
  : Uint8Array.from(atob(payload.base64), (one) => one.charCodeAt(0));

function asHex(payload) {
  const all = bytesOf(payload), lines = [];
  for (let at = 0; at < all.length; at += 16) {
    const row = [...all.slice(at, at + 16)];
    lines.push([at.toString(16).padStart(6, "0"), row.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47),
      row.map((one) => one >= 32 && one < 127 ? String.fromCharCode(one) : ".").join("")].join("  "));
  }
  return lines.join("\n");
}

// A payload as the server sends it, a text or the base64 of bytes, perhaps only its beginning. `size`: of the whole.
export function shownPayload(payload, size) {
  const text = form === "hex" || typeof payload !== "string" ? asHex(payload) : form === "text" ? payload : asJson(payload) ?? payload;
  const known = bytesOf(payload).length;
  return [size === 0 ? h("span", { class: "quiet" }, "empty") : foreign(text, SHOWN),
    known < size ? h("p", { class: "quiet" }, `The first ${bytes(known)} of ${bytes(size)}.`) : null];
}

export function formChoice(label, again) {
  const option = (value, text) => h("option", { value, selected: form === value }, text);
  return h("label", {}, label, h("select", { onchange: (event) => { form = event.target.value; again(); } },
    option("auto", "JSON if it is"), option("text", "text"), option("hex", "hex")));
}
