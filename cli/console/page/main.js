import { get, query, Refused, takeToken } from "./api.js";
import { bookiesPage } from "./bookies.js";
import { clusterPage } from "./cluster.js";
import { duration, h, patch } from "./dom.js";
import { entriesPage } from "./entries.js";
import { groupPage, groupsPage } from "./groups.js";
import { jobsPage } from "./jobs.js";
import { ledgerPage, ledgersPage } from "./ledgers.js";
import { logPage, logsPage } from "./logs.js";
import { recordsPage } from "./records.js";
import { repairPage } from "./repair.js";
import { topicPage, topicsPage } from "./topics.js";

// Page -> its title, what shows all, what shows one thing, and the page that it is part of, if it is no page of its own.
const PAGES = {
  cluster: ["Cluster", clusterPage],
  bookies: ["Bookies", bookiesPage],
  ledgers: ["Ledgers", ledgersPage, ledgerPage],
  logs: ["Logs", logsPage, logPage],
  entries: ["Entries", logsPage, entriesPage, "logs"],
  topics: ["Topics", topicsPage, topicPage],
  records: ["Records", topicsPage, recordsPage, "topics"],
  groups: ["Groups", groupsPage, groupPage],
  repair: ["Repair", repairPage],
  jobs: ["Jobs", jobsPage],
};

const main = document.getElementById("main"), health = document.getElementById("health"), live = document.getElementById("live");
let turn = 0, timer = null, interval = 2, seen = null, waiting = null;

function route() {
  const [page, ...rest] = location.hash.replace(/^#\//, "").split("/");
  const name = page in PAGES ? page : "cluster";
  let one = null;
  try { one = rest.length ? decodeURIComponent(rest.join("/")) : null; } catch { /* shown as the list */ }
  return { name, one };
}

function showHealth(state) {
  const cluster = state.cluster;
  let kind = "bad", text;
  if (!cluster) text = state.error ?? "The cluster has not been seen yet.";
  else if (state.error) text = `What is shown is ${duration(state.now - state.looked_at)} old: ${state.error}`;
  else {
    const problem = cluster.findings.find((finding) => finding.severity === "problem");
    kind = problem ? "bad" : cluster.findings.length ? "warn" : "good";
    text = `The cluster ${cluster.health}${cluster.findings.length ? `: ${(problem ?? cluster.findings[0]).text}` : ""}.`;
  }
  if (health.className !== `health ${kind}`) health.className = `health ${kind}`;
  if (health.textContent !== text) health.textContent = text;
}

function showNavigation(name) {
  const shown = PAGES[name][3] ?? name;
  patch(document.querySelector("nav"), Object.entries(PAGES).filter(([, page]) => page[3] === undefined).map(([page, [title]]) =>
    h("a", { href: `#/${page}`, "aria-current": page === shown ? "page" : null }, title)));
  document.title = `${PAGES[name][0]} · Octavo`;
}

// Shows the present page now and after each look of the server. Only the latest call goes on. `after`: the look already
// shown; the server answers once it has looked again.
async function show(after = null) {
  clearTimeout(timer);
  waiting?.abort(); // a browser has few connections to one server
  waiting = new AbortController();
  const mine = turn += 1;
  const { name, one } = route();
  try {
    const state = await get(`/api/state${query({ after })}`, waiting.signal);
    if (mine !== turn) return;
    interval = state.interval_seconds;
    seen = state.look;
    const [, list, single] = PAGES[name];
    const content = !state.cluster ? [h("p", {}, "Waiting for the cluster.")]
      : await (one !== null && single ? single(state, again, one) : list(state, again));
    if (mine !== turn) return;
    showHealth(state);
    showNavigation(name);
    if (main.dataset.page !== location.hash) main.replaceChildren(); // nothing that was typed elsewhere stays
    main.dataset.page = location.hash;
    patch(main, content.flat(2).filter(Boolean));
    patch(live, [document.createTextNode(`live, every ${interval} s`)]);
    if (!document.hidden) timer = setTimeout(() => show(seen));
  } catch (error) {
    if (mine !== turn) return;
    showNavigation(name);
    patch(live, [document.createTextNode(error.status === 0 ? "not connected" : "")]);
    if (error.status !== 0 && error.status !== 503) patch(main, [h("h1", {}, error.status === 404 ? "Not found" : "Refused"), h("p", {}, error.message)]);
    if (error.status === 0 || error.status === 503) { health.className = "health bad"; health.textContent = error.message; }
    if (!document.hidden) timer = setTimeout(show, interval * 1000);
    if (!(error instanceof Refused)) throw error;
  }
}

// After a change the server looks at once; a change of what is shown waits for nothing.
const again = (changed = false) => show(changed ? seen : null);

takeToken();
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); main.focus(); };
addEventListener("hashchange", () => { takeToken(); show(); main.focus(); scrollTo(0, 0); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) show(); });
show();
