import { post } from "./api.js";
import { clock, column, count, foreign, h, number, state as stateOf, table } from "./dom.js";

const JOBS = {
  hold: { title: "Hold", text: "The bookie may be down for this time without being declared lost.", reason: true },
  release: { title: "Release", text: "The hold ends: a bookie that is down counts as missing from now on." },
  drain: { title: "Drain", text: "Everything is moved off the bookie, which serves on meanwhile. This may take hours.", typed: true },
  undrain: { title: "End drain", text: "What has been moved stays where it is." },
  "read-only": { title: "Make read-only", text: "Writers replace the bookie for new entries; it serves reads on. This holds over restarts.", typed: true, reason: true },
  writable: { title: "Make writable", text: "The bookie takes new entries again, unless its disks are short of space." },
  pause: { title: "Pause repair", text: "No copies are made anywhere until repair is resumed.", typed: true },
  resume: { title: "Resume repair", text: "Lost copies are made again." },
};

// The button that begins a job, or nothing where the console changes nothing.
export function jobButton(state, job, bookie, again) {
  return state.changes ? h("button", { onclick: () => confirm(job, bookie, again) }, JOBS[job].title) : null;
}

// What cannot be taken back at once asks for the name to be typed.
function confirm(job, bookie, again) {
  const { title, text, typed, reason } = JOBS[job];
  const name = bookie ?? "repair";
  const go = h("button", { class: "danger", disabled: Boolean(typed) }, title);
  const error = h("p", { class: "error", role: "alert" });
  const dialog = h("dialog", { "aria-labelledby": "job-title" }, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    const elements = event.target.elements, body = bookie === null ? {} : { bookie };
    if (job === "hold") body.seconds = Number(elements.minutes.value) * 60;
    if (reason && elements.reason.value) body.reason = elements.reason.value;
    go.disabled = true;
    try {
      await post(`/api/jobs/${job}`, body);
      dialog.close();
      again(true);
    } catch (refused) {
      error.textContent = refused.message;
      go.disabled = false;
    }
  } },
  h("h2", { id: "job-title" }, bookie === null ? title : `${title}: ${bookie}`),
  h("p", {}, text),
  job === "hold" ? h("label", {}, "Minutes", h("input", { name: "minutes", type: "number", min: 1, max: 10080, value: 60, required: true })) : null,
  reason ? h("label", {}, "Reason", h("input", { name: "reason", maxlength: 200 })) : null,
  typed ? h("label", {}, `Type ${name} to confirm`, h("input", { name: "typed", autocomplete: "off", autofocus: true,
    oninput: (event) => { go.disabled = event.target.value !== name; } })) : null,
  error,
  h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go)));
  dialog.onclose = () => dialog.remove();
  document.getElementById("dialogs").append(dialog);
  dialog.showModal();
}

function switchOf(state, row, again) {
  if (!row?.can_be_switched) return null;
  return [jobButton(state, row.read_only_reason === null ? "read-only" : "writable", row.bookie_id, again), " "];
}

export function jobsPage(state, again) {
  const known = new Map(state.bookies.map((row) => [row.bookie_id, row]));
  const rows = state.repair.bookies.map((one) => {
    const job = { held: "release", draining: "undrain" }[one.state], row = known.get(one.bookie_id);
    return [
      one.bookie_id, [row ? stateOf(row.state) : "–", row?.read_only_reason ? h("div", {}, foreign(row.read_only_reason)) : null],
      stateOf(one.state), one.since ? clock(one.since) : "–", one.until ? clock(one.until) : "–",
      one.reason ? foreign(one.reason) : "–", count(one.ledgers),
      h("span", {}, switchOf(state, row, again), job ? jobButton(state, job, one.bookie_id, again)
        : ["ordinary", "missing"].includes(one.state) ? [jobButton(state, "drain", one.bookie_id, again), " ", jobButton(state, "hold", one.bookie_id, again)]
          : null),
    ];
  });
  return [
    h("h1", {}, "Jobs"),
    h("p", { class: "quiet" }, state.changes ? ["What operators have asked of bookies and of repair, and what they can ask. Retiring a bookie and accepting a loss are left to ", h("code", {}, "octavo repair"), ". A bookie whose administration socket is not on this console's host is made read-only there: ", h("code", {}, "octavo bookie read-only"), "."]
      : "What operators have asked of repair. This console was started with --read-only."),
    h("section", { class: "panel" }, table(null, [column("Bookie"), column("State"), column("Condition"), column("Since"), column("Until"),
      column("Reason"), number("Ledgers left"), column("")], rows, "The cluster has no bookie.")),
    h("p", {}, state.repair.paused ? jobButton(state, "resume", null, again) : jobButton(state, "pause", null, again)),
  ];
}
