// One topic: messages, partitions, writers and readers, and configs.

import { html, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Button, Empty, Panel, ProblemBox, Stat, Tabs } from "/page/parts/box.js";
import { bytes, count, duration, exactly, rate } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { usePolled } from "/page/requests.js";
import { Messages } from "/page/sections/topics/messages.js";
import { WriteDialog } from "/page/sections/topics/write.js";

const SECTIONS = { flow: "flows", view: "views", group: "groups" };

const PARTITIONS = [
  { id: "partition", title: "Partition", value: (row) => row.partition, align: "right", width: 90 },
  { id: "start", title: "First", value: (row) => row.start, show: (row) => exactly(row.start), align: "right" },
  { id: "end", title: "Next", about: "The offset of the next record", value: (row) => row.end, show: (row) => exactly(row.end), align: "right" },
  { id: "records", title: "Records", value: (row) => row.records, show: (row) => exactly(row.records), align: "right" },
  { id: "bytes", title: "Size", value: (row) => row.bytes ?? -1, show: (row) => bytes(row.bytes), align: "right" },
  { id: "leader", title: "Leader", value: (row) => row.leader, align: "right", phone: false },
  { id: "in_sync", title: "In sync", value: (row) => row.in_sync?.length, show: (row) => `${row.in_sync?.length ?? "–"} of ${row.replicas?.length ?? "–"}`, align: "right", phone: false },
];

const CONFIGS = [
  { id: "config", title: "Config", value: (row) => row.config, show: (row) => html`<code>${row.config}</code>` },
  { id: "value", title: "Value", value: (row) => row.value, show: (row) => html`<code>${row.value ?? "–"}</code>` },
  { id: "source", title: "From", about: "Set for this topic, set for the broker, or the default", value: (row) => row.source, show: (row) => html`<span class=${row.source === "topic" ? "" : "quiet"}>${row.source}</span>`, width: 110 },
];

const Ends = ({ title, ends, none }) => html`<${Panel} title=${title}>
  ${ends.length === 0 ? html`<p class="quiet">${none}</p>` : html`<ul class="topic-ends">${ends.map((end) => html`<li key=${`${end.kind}/${end.name}`}><span class="quiet">${end.kind}</span> <a href=${address(SECTIONS[end.kind], [end.name])}>${end.name}</a></li>`)}</ul>`}
<//>`;

const DISK_SOON_MS = 30 * 86_400_000;

const expiryText = (topic) => (topic.lost_after_ms === null ? "never" : duration(topic.lost_after_ms / 1000));

export function TopicDetail({ name, part, query, go, api }) {
  const [topic, problem, reload] = usePolled(api, `/v1/log/topics/${encodeURIComponent(name)}`, 5_000);
  const [writing, setWriting] = useState(false);
  const tabs = [
    { id: "messages", title: "Messages", href: address("topics", [name]) },
    { id: "partitions", title: "Partitions", count: topic?.partitions, href: address("topics", [name, "partitions"]) },
    { id: "configs", title: "Configs", href: address("topics", [name, "configs"]) },
  ];
  const current = tabs.some((tab) => tab.id === part) ? part : "messages";
  return html`<div class="page-head">
      <h1><a class="crumb" href=${address("topics")}>Topics</a> ${name}</h1>
      ${topic?.kind && html`<span class="quiet">${topic.kind}</span>`}
      <div class="page-aside">${topic?.writable && html`<${Button} onClick=${() => setWriting(true)} data-test="write">Write a message<//>`}</div>
    </div>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${topic && html`<div class="stats">
      <${Stat} label="Records" value=${count(topic.records)} title=${exactly(topic.records)} />
      <${Stat} label="Now" value=${rate(topic.records_per_s)} note="over 5 min" />
      <${Stat} label="Size" value=${bytes(topic.size_bytes)} note=${topic.bytes_per_s ? `${bytes(topic.bytes_per_s)}/s` : ""} />
      <${Stat} label="Records expire after" value=${expiryText(topic)} note=${topic.lost_by ? `by ${topic.lost_by}` : topic.archived ? "older records are in the archive" : "no retention limit"} />
      <${Stat} label="Partitions" value=${topic.partitions} note=${`${topic.replicas} ${topic.replicas === 1 ? "replica" : "replicas"}`} state=${topic.offline > 0 ? "bad" : ""} />
      ${topic.volatile && html`<${Stat} label="Volatile" value="in memory" state="warn" note="a restart deletes all records" />`}
      ${topic.disk_full_in_ms !== null && topic.disk_full_in_ms < DISK_SOON_MS && html`<${Stat} label="Disk full in" value=${duration(topic.disk_full_in_ms / 1000)} state="warn" />`}
    </div>`}
    <${Tabs} label="Parts of the topic" tabs=${tabs} current=${current} />
    ${current === "messages" && html`<${Messages} name=${name} partitions=${topic?.partitions ?? null} query=${query} go=${go} api=${api} />`}
    ${current === "partitions" && topic && html`<${Panel} title="Partitions"><${Table} label="Partitions" columns=${PARTITIONS} rows=${topic.partition_list} rowKey=${(row) => row.partition} empty="No partition has a leader." /><//>
      <div class="columns topic-columns"><${Ends} title="Written by" ends=${topic.written_by} none="No part of the app writes it. Its records come from outside." /><${Ends} title="Read by" ends=${topic.read_by} none="No known reader." /></div>`}
    ${current === "configs" && topic && (topic.configs.length === 0 ? html`<${Empty} title="No configs" />` : html`<${Panel}><${Table} label="Configs" columns=${CONFIGS} rows=${topic.configs} rowKey=${(row) => row.config} find=${true} /><//>`)}
    ${writing && html`<${WriteDialog} topic=${topic} api=${api} onClose=${() => setWriting(false)} onWritten=${reload} />`}`;
}
