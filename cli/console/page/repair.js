import { bytes, cards, column, count, duration, facts, foreign, h, narrow, s, state as stateOf, table } from "./dom.js";
import { jobButton } from "./jobs.js";

function progress(ledgers) {
  const total = Object.values(ledgers).reduce((sum, one) => sum + one, 0);
  const whole = total ? ledgers.whole / total : 1;
  const label = `${count(ledgers.whole)} of ${count(total)} ledgers are whole`;
  return h("div", {}, h("p", {}, label),
    s("svg", { class: "progress", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
      s("rect", { class: whole < 1 ? "low" : "track", width: 1000, height: 10 }), s("rect", { class: "full", width: 1000 * whole, height: 10 })));
}

export function repairPage(state, again) {
  const repair = state.repair, ledgers = repair.ledgers;
  const busy = ledgers.queued + ledgers.copying;
  return [
    h("h1", {}, "Repair"),
    repair.paused ? h("p", { class: "warn" }, "Repair is paused. ", jobButton(state, "resume", null, again)) : null,
    repair.brake ? h("p", { class: "bad" }, "So many bookies are missing at once that none is declared lost. To declare them lost all the same: ", h("code", {}, "octavo repair resume --override-brake")) : null,
    cards([["Queued", count(ledgers.queued), "ledgers"], ["Being copied", count(ledgers.copying), "ledgers"],
      ["Blocked", count(ledgers.short + ledgers.open + ledgers.divergent + ledgers.no_target), "ledgers"],
      ["Rate", `${bytes(repair.bytes_per_second)}/s`, `${count(repair.ledgers_per_second)} ledgers/s`],
      ["Time left", busy ? duration(repair.seconds_left) : "–"]]),
    h("section", { class: "panel" }, h("h2", {}, "Progress"), progress(ledgers), facts([
      ["Auditor", repair.auditor ?? h("span", { class: "warn" }, "none elected")],
      ["Last round", repair.last_round_seconds_ago === null ? "–" : `${duration(repair.last_round_seconds_ago)} ago`],
      ["Copied", `${count(repair.entries_copied)} entries, ${bytes(repair.bytes_copied)}`],
      ["Waiting since", repair.oldest_queued_seconds === null ? "–" : duration(repair.oldest_queued_seconds)]])),
    h("section", { class: "panel" }, h("h2", {}, "Blocked"), table(null,
      [narrow("Ledger"), column("Entries"), column("Class"), column("Bookies"), column("Reason")],
      repair.blocked.map((one) => [h("a", { href: `#/ledgers/${one.ledger_id}` }, String(one.ledger_id)),
        `${one.first_entry ?? 0} to ${one.last_entry ?? "the end"}`, stateOf(one.class), one.bookies.join(", "), foreign(one.reason)]), "Nothing is blocked.")),
  ];
}
