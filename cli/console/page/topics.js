// Topics of Kafka clients: all of them, and one with its partitions.

import { get, query } from "./api.js";
import { bytes, column, count, facts, foreign, h, number, table } from "./dom.js";

let page = { name: null, first: 0 };

export async function topicsPage() {
  const found = await get("/api/topics");
  return [
    h("h1", {}, "Topics"),
    h("section", { class: "panel" }, table(null,
      [column("Topic"), number("Partitions"), number("Copies"), number("Acknowledged by"), number("Closed segments"), column("Keeps")],
      found.items.map((topic) => [
        h("a", { href: `#/topics/${encodeURIComponent(topic.name)}` }, topic.name), count(topic.partitions), count(topic.write_quorum),
        count(topic.ack_quorum), bytes(topic.bytes), topic.state === "active" ? topic.keeps : h("span", { class: "warn" }, `${topic.state}`)]),
      "No topic. Kafka clients make them, and `octavo topic create`.")),
    found.more ? h("p", { class: "quiet" }, `There are more topics than these ${found.shown_max}; \`octavo topic list\` shows all.`) : null,
  ];
}

export async function topicPage(state, again, name) {
  if (page.name !== name) page = { name, first: 0 };
  const topic = await get(`/api/topics/${encodeURIComponent(name)}${query({ first: page.first })}`);
  const last = topic.first + topic.partition_list.length, further = (first) => { page.first = first; again(); };
  const records = (one) => h("a", { href: `#/records/${encodeURIComponent(name)}/${one.partition}` }, "Records", h("span", { class: "hidden" }, ` of partition ${one.partition}`));
  const trouble = topic.partition_list.find((one) => one.trouble !== "");
  return [
    h("h1", {}, `Topic ${topic.name}`),
    h("section", { class: "panel" }, facts([
      ["State", topic.state],
      ["Copies", `${topic.write_quorum} of each batch, acknowledged by ${topic.ack_quorum}`],
      ["Keeps", topic.keeps],
      ...Object.entries(topic.settings).map(([setting, value]) => [setting, h("code", {}, value)]),
      ["Id", h("code", {}, topic.topic_id)],
    ])),
    h("section", { class: "panel" }, h("h2", {}, "Partitions"), table(null,
      [column("Partition"), column("Gateway"), column("Leader"), number("Begins at"), number("Ends at"), number("Closed segments"), column("Log"), column("Records")],
      topic.partition_list.map((one) => [String(one.partition), one.gateway === null ? "–" : String(one.gateway),
        one.leader === null ? h("span", { class: "quiet" }, "none") : foreign(one.leader, 60), count(one.begin), count(one.end), bytes(one.bytes),
        h("a", { href: `#/logs/${encodeURIComponent(`kafka/${topic.name}/${one.partition}`)}` }, `kafka/${topic.name}/${one.partition}`),
        topic.private || topic.name.startsWith("__") ? "–" : records(one)]))),
    topic.partitions > topic.shown_max ? h("p", {},
      h("button", { disabled: topic.first === 0, onclick: () => further(Math.max(0, topic.first - topic.shown_max)) }, "Back"), " ",
      h("button", { disabled: last >= topic.partitions, onclick: () => further(last) }, "Further"), ` Partitions ${topic.first} to ${last - 1} of ${count(topic.partitions)}.`) : null,
    topic.private ? h("p", { class: "quiet" }, "The topic is private: this console has no password, so it knows neither ends nor records. `octavo topic show` does, with OCTAVO_PASSWORD.")
      : trouble ? h("p", { class: "bad" }, `Partition ${trouble.partition}: `, foreign(trouble.trouble)) : null,
    h("p", { class: "quiet" }, "Beginning and end are offsets of records. A partition that no gateway leads has no leader until a client asks for it."),
  ];
}
