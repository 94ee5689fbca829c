import { bytes, cards, clock, count, duration, facts, h, latency, s } from "./dom.js";

const WIDTH = 900, HEIGHT = 110, LEFT = 60, BOTTOM = 20;

// Between two looks of a server that rests there are 30 seconds; where more are missing, the line is interrupted.
const GAP_SECONDS = 75;

// Two values over the last hour. `points`: [time, value, value]; a value that is not known interrupts its line.
function chart(title, names, points, format, { per = "/s", least = 1 } = {}) {
  const top = Math.max(least, ...points.flatMap((point) => point.slice(1)));
  const last = points.at(-1)?.[0] ?? 0, first = Math.min(points[0]?.[0] ?? 0, last - 60);
  const x = (time) => LEFT + (time - first) / (last - first || 1) * (WIDTH - LEFT - 10);
  const y = (value) => 10 + (1 - value / top) * (HEIGHT - BOTTOM - 10);
  const runs = (at) => points.reduce((found, point, index) => {
    if (point[at] === null || (index && point[0] - points[index - 1][0] > GAP_SECONDS)) found.push([]);
    if (point[at] !== null) found.at(-1).push(`${x(point[0]).toFixed(1)},${y(point[at]).toFixed(1)}`);
    return found;
  }, [[]]).filter((run) => run.length);
  const line = (at, name) => runs(at).map((run) => s("polyline", { class: name, points: run.join(" ") }));
  const now = points.at(-1) ?? [0, null, null];
  const value = (at) => now[at] === null ? "–" : `${format(now[at])}${per}`;
  const label = `${title}: ${names[0]} ${value(1)}, ${names[1]} ${value(2)} now`;
  return h("section", { class: "panel" },
    h("h2", {}, title),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
      [0, .5, 1].map((share) => [
        s("line", { class: "grid", x1: LEFT, x2: WIDTH - 10, y1: y(top * share), y2: y(top * share) }),
        s("text", { x: LEFT - 8, y: y(top * share) + 4, "text-anchor": "end" }, format(top * share))]),
      s("text", { x: LEFT, y: HEIGHT - 4 }, `${duration(last - first)} ago`),
      s("text", { x: WIDTH - 10, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
      line(1, "one"), line(2, "two")),
    h("p", { class: "legend" }, h("span", { class: "one" }, `${names[0]} ${value(1)}`),
      h("span", { class: "two" }, `${names[1]} ${value(2)}`)));
}

const atMost = (title, seconds) => [title, latency(seconds), seconds === null ? null : "or less"];

export function clusterPage(state) {
  const { cluster, totals, history } = state;
  const numbers = cluster.bookies;
  return [
    h("h1", {}, "Cluster"),
    cards([
      ["Bookies", count(numbers.writable), `writable of ${count(state.bookies.length)}`],
      ["Entries added", count(totals.entries_added_per_second), "per second"],
      ["Bytes added", bytes(totals.bytes_added_per_second), "per second"],
      ["Entries read", count(totals.entries_read_per_second), "per second"],
      ["Bytes read", bytes(totals.bytes_read_per_second), "per second"],
      atMost("99 % of adds", totals.add_p99_seconds),
      atMost("99 % of reads", totals.read_p99_seconds),
      atMost("99 % of journal syncs", totals.journal_sync_p99_seconds),
    ]),
    h("section", { class: "panel" },
      h("h2", {}, "Findings"),
      cluster.findings.length
        ? h("ul", { class: "findings" }, cluster.findings.map((finding) =>
          h("li", {}, h("strong", { class: finding.severity === "problem" ? "bad" : "warn" }, `${finding.severity}: `), finding.text)))
        : h("p", { class: "quiet" }, "Nothing is wrong.")),
    chart("Entries per second", ["added", "read"], history.map((point) => [point[0], point[2], point[5]]), count),
    chart("Bytes per second", ["added", "read"], history.map((point) => [point[0], point[3], point[6]]), bytes),
    chart("Time that a bookie takes for an add", ["half of them at most", "99 % at most"],
      history.map((point) => [point[0], point[7], point[8]]), latency, { per: "", least: .001 }),
    h("section", { class: "panel" },
      h("h2", {}, "About"),
      facts([["Cluster", cluster.cluster_id], ["Formats", `release ${cluster.release}`],
        ["Seen", state.looked_at ? clock(state.looked_at) : "never"]])),
  ];
}
