// The section for consumer groups: their members and lag, and a dialog that moves their offsets.

import { html, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Button, Panel, ProblemBox, Stat, State } from "/page/parts/box.js";
import { bytes, count, duration, exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { SeekDialog } from "/page/sections/groups/seek.js";
import { usePolled } from "/page/requests.js";

const KINDS = { stable: "good", empty: "", dead: "bad" };
const kindOf = (state) => KINDS[state] ?? "warn";

const lag = [
  { id: "lag", title: "Unread", about: "Unread records", value: (row) => row.lag ?? -1, show: (row) => html`<span title=${exactly(row.lag)}>${count(row.lag)}</span>${row.gone > 0 && html` <span class="group-gone" title="Deleted before they were read">${count(row.gone)} lost</span>`}`, align: "right" },
  { id: "lag_s", title: "Behind", about: "Age of the oldest unread record", value: (row) => row.lag_s ?? -1, show: (row) => duration(row.lag_s), align: "right" },
  { id: "lag_bytes", title: "Size", about: "Unread bytes, estimated from the average size of a record", value: (row) => row.lag_bytes ?? -1, show: (row) => bytes(row.lag_bytes), align: "right", phone: false },
  { id: "loss", title: "Loss in", about: "Time until retention deletes unread records, at the current rates", value: (row) => row.time_to_loss_s ?? Infinity, show: (row) => (row.time_to_loss_s === null ? html`<span class="quiet">none expected</span>` : duration(row.time_to_loss_s)), align: "right", phone: false },
];

const COLUMNS = [
  { id: "group", title: "Group", value: (row) => row.group, show: (row) => html`<a href=${address("groups", [row.group])}><strong>${row.group}</strong></a>` },
  { id: "state", title: "State", value: (row) => row.state, show: (row) => html`<${State} state=${row.state} kind=${kindOf(row.state)} />` },
  { id: "members", title: "Members", value: (row) => row.members ?? -1, align: "right", phone: false },
  { id: "topics", title: "Topics", value: (row) => row.topics.join(", "), phone: false },
  ...lag,
];

const PARTITIONS = [
  { id: "topic", title: "Topic", value: (row) => row.topic, show: (row) => html`<a href=${address("topics", [row.topic])}>${row.topic}</a>` },
  { id: "partition", title: "P", about: "Partition", value: (row) => row.partition, align: "right" },
  { id: "committed", title: "Committed", value: (row) => row.committed ?? -1, show: (row) => exactly(row.committed), align: "right" },
  { id: "end", title: "Next", about: "The offset of the next record", value: (row) => row.end ?? -1, show: (row) => exactly(row.end), align: "right", phone: false },
  ...lag,
  { id: "member", title: "Read by", value: (row) => row.member, show: (row) => (row.member ? `${row.member} at ${hostOf(row.host)}` : html`<span class="quiet">none</span>`), phone: false },
];

/** Remove the slash that Kafka puts before the address. */
const hostOf = (host) => host?.replace(/^\//, "") ?? "";

const MEMBERS = [
  { id: "client", title: "Client", value: (row) => row.client },
  { id: "host", title: "Host", value: (row) => hostOf(row.host) },
  { id: "partitions", title: "Partitions", value: (row) => row.partitions, align: "right" },
  { id: "member", title: "Member", value: (row) => row.member, show: (row) => html`<span class="mono quiet">${row.member}</span>`, phone: false },
];

function GroupList({ go, api }) {
  const [data, problem] = usePolled(api, "/v1/log/groups", 5_000);
  const rows = data?.groups;
  return html`<div class="page-head"><h1>Groups</h1>${rows && html`<span class="quiet">${rows.length} in the log; flows and views do not use consumer groups</span>`}</div>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${rows ? html`<${Panel}><${Table} label="Groups" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.group} onOpen=${(row) => go("groups", [row.group])} find=${rows.length > 8} empty="No consumer groups." /><//>` : !problem && html`<p class="quiet">Loading the groups…</p>`}`;
}

function GroupDetail({ name, api }) {
  const [group, problem, reload] = usePolled(api, `/v1/log/groups/${encodeURIComponent(name)}`, 5_000);
  const [seeking, setSeeking] = useState(false);
  return html`<div class="page-head">
      <h1><a class="crumb" href=${address("groups")}>Groups</a> ${name}</h1>
      ${group && html`<${State} state=${group.state} kind=${kindOf(group.state)} />`}
      <div class="page-aside">${group && html`<${Button} onClick=${() => setSeeking(true)} data-test="seek">Move offsets<//>`}</div>
    </div>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${!group && !problem && html`<p class="quiet">Loading the group…</p>`}
    ${group && html`<div class="stats">
        <${Stat} label="Unread" value=${count(group.lag)} title=${exactly(group.lag)} note=${group.gone > 0 ? `${count(group.gone)} lost before they were read` : ""} state=${group.gone > 0 ? "bad" : ""} />
        <${Stat} label="Behind" value=${duration(group.lag_s)} />
        <${Stat} label="Size" value=${bytes(group.lag_bytes)} />
        <${Stat} label="Loss in" value=${group.time_to_loss_s === null ? "–" : duration(group.time_to_loss_s)} note=${group.time_to_loss_s === null ? "none expected" : "at the current rates"} />
        <${Stat} label="Members" value=${group.members.length} note=${group.assignor ?? ""} />
      </div>
      <${Panel} title="Partitions"><${Table} label="Partitions" columns=${PARTITIONS} rows=${group.partitions} rowKey=${(row) => `${row.topic}/${row.partition}`} find=${group.partitions.length > 12} empty="No committed offsets." /><//>
      <${Panel} title="Members"><${Table} label="Members" columns=${MEMBERS} rows=${group.members} rowKey=${(row) => row.member} empty="No active members." /><//>`}
    ${seeking && html`<${SeekDialog} group=${group} api=${api} onClose=${() => setSeeking(false)} onMoved=${reload} />`}`;
}

export default {
  id: "groups",
  title: "Groups",
  key: "u",
  icon: html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.4"><circle cx="5.500" cy="5" r="2.300" /><circle cx="11.500" cy="6" r="1.800" /><path d="M1.500 13c0-2.500 1.800-4 4-4s4 1.500 4 4M10.500 9.500c2.300-.4 4 1 4 3" stroke-linecap="round" /></svg>`,
  View: ({ path, go, api }) => (path.length > 0 ? html`<${GroupDetail} key=${path[0]} name=${path[0]} api=${api} />` : html`<${GroupList} go=${go} api=${api} />`),
};
