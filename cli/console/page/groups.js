// Consumer groups of Kafka clients: all of them, and one with its members and its lag.

import { get } from "./api.js";
import { column, count, facts, foreign, h, number, table } from "./dom.js";

const KIND = { Stable: "good", Empty: "quiet", PreparingRebalance: "warn", CompletingRebalance: "warn",
  Assigning: "warn", Reconciling: "warn" };
const shownState = (name) => h("span", { class: `state ${KIND[name] ?? "bad"}` }, name);
const shownLag = (lag) => lag ? count(lag) : h("span", { class: "quiet" }, "0");

export async function groupsPage() {
  const found = await get("/api/groups");
  return [
    h("h1", {}, "Consumer groups"),
    h("section", { class: "panel" }, found.trouble !== null ? h("p", {}, found.trouble) : table(null,
      [column("Group"), column("Protocol"), column("State"), number("Members"), number("Lag")],
      found.items.map((group) => [h("a", { href: `#/groups/${encodeURIComponent(group.group)}` }, foreign(group.group, 80)),
        group.protocol, shownState(group.state), count(group.members), shownLag(group.lag)]), "No group.")),
    h("p", { class: "quiet" }, "Lag: records behind the committed offsets, over all partitions."),
    found.more ? h("p", { class: "quiet" }, `There are more groups than these ${found.shown_max}; \`octavo group list\` shows all.`) : null,
  ];
}

const partitions = (member) => member.partitions === null ? h("span", { class: "quiet" }, "not known")
  : member.partitions.length ? member.partitions.map(([topic, partition]) => [h("a", { href: `#/topics/${encodeURIComponent(topic)}` }, `${topic}/${partition}`), " "])
    : h("span", { class: "quiet" }, "none");

export async function groupPage(state, again, name) {
  const group = await get(`/api/groups/${encodeURIComponent(name)}`);
  const total = group.offsets.reduce((sum, one) => sum + one.lag, 0);
  return [
    h("h1", {}, "Group ", foreign(group.group, 80), " ", shownState(group.state)),
    h("section", { class: "panel" }, facts([
      ["Protocol", group.protocol], ["Members", count(group.members.length)], ["Lag", `${count(total)} records`],
      group.assignor === null ? null : ["Assignor", foreign(group.assignor, 80)],
    ])),
    h("section", { class: "panel" }, h("h2", {}, "Members"), table(null,
      [column("Member"), column("Client"), column("Host"), column("Partitions")],
      group.members.map((one) => [foreign(one.instance ?? one.member, 80), foreign(one.client, 60), foreign(one.host, 60), partitions(one)]),
      "No members: nobody reads for this group now.")),
    h("section", { class: "panel" }, h("h2", {}, "Offsets"), table(null,
      [column("Topic"), number("Partition"), number("Committed"), number("End"), number("Lag"), column("Records")],
      group.offsets.map((one) => [h("a", { href: `#/topics/${encodeURIComponent(one.topic)}` }, one.topic), count(one.partition), count(one.offset),
        count(one.end), shownLag(one.lag),
        h("a", { href: `#/records/${encodeURIComponent(one.topic)}/${one.partition}` }, "Records", h("span", { class: "hidden" }, ` of ${one.topic}, partition ${one.partition}`))]),
      "No offset has been committed.")),
  ];
}
