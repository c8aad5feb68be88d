// The dialog that moves the offsets of a group, with a preview.

import { html, useState } from "/page/vendor/ui.js";
import { Button, Dialog, Field, ProblemBox } from "/page/parts/box.js";
import { exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";

const signed = (n) => (n === null ? "–" : n > 0 ? `+${exactly(n)}` : exactly(n));

const MOVES = [
  { id: "topic", title: "Topic", value: (row) => row.topic },
  { id: "partition", title: "P", about: "Partition", value: (row) => row.partition, align: "right", width: 60 },
  { id: "old", title: "Before", value: (row) => row.old ?? -1, show: (row) => (row.old === null ? html`<span class="quiet">none</span>` : exactly(row.old)), align: "right" },
  { id: "new", title: "After", value: (row) => row.new, show: (row) => html`<b>${exactly(row.new)}</b>`, align: "right" },
  { id: "moved", title: "Moves by", value: (row) => row.moved ?? 0, show: (row) => html`<span class=${row.moved < 0 ? "group-back" : ""}>${signed(row.moved)}</span>`, align: "right" },
];

export function SeekDialog({ group, api, onClose, onMoved }) {
  const topics = [...new Set(group.partitions.map((partition) => partition.topic))];
  const [kind, setKind] = useState("start");
  const [offset, setOffset] = useState("");
  const [topic, setTopic] = useState("");
  const [result, setResult] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const to = kind === "offset" ? offset.trim() : kind;
  const body = { to, ...(topic ? { topic } : {}) };
  const send = async (dry_run) => {
    setBusy(true);
    setProblem(null);
    try {
      setResult({ ...(await api.post(`/v1/log/groups/${encodeURIComponent(group.group)}/seek`, { ...body, dry_run })), request: JSON.stringify(body) });
      if (!dry_run) onMoved();
    } catch (error) {
      setResult(null);
      setProblem(error);
    }
    setBusy(false);
  };
  // Only a previewed change can be applied.
  const isPreviewed = result?.dry_run && result.request === JSON.stringify(body);
  const done = result && !result.dry_run;
  return html`<${Dialog} title=${`Move ${group.group}`} onClose=${onClose} wide=${true}>
    <form onSubmit=${(event) => (event.preventDefault(), send(true))}>
      <div class="seek-bounds">
        <${Field} label="To"><select value=${kind} onChange=${(event) => setKind(event.target.value)} data-test="seek-to"><option value="start">the start</option><option value="end">the end: only new records</option><option value="offset">another offset…</option></select><//>
        ${kind === "offset" && html`<${Field} label="Offset" hint="47, +10 (after the start), -10 (before the end), @-1h, @2026-01-31T12:00:00Z"><input class="mono" value=${offset} onInput=${(event) => setOffset(event.target.value)} data-test="seek-offset" /><//>`}
        <${Field} label="In"><select value=${topic} onChange=${(event) => setTopic(event.target.value)}><option value="">all topics of the group</option>${topics.map((topic) => html`<option key=${topic} value=${topic}>${topic}</option>`)}</select><//>
      </div>
      ${problem && html`<${ProblemBox} problem=${problem} />`}
      ${result?.at_work.length > 0 && !done && html`<p class="seek-busy">Active members: ${result.at_work.join(", ")}. Stop them first: they would overwrite the new offsets.</p>`}
      ${result && html`<div data-test=${done ? "moved" : "would-move"}><p class="quiet">${done ? "Moved." : "Preview:"}</p><${Table} label="Changes of offsets" columns=${MOVES} rows=${result.moves} rowKey=${(row) => `${row.topic}/${row.partition}`} /></div>`}
      <div class="actions">
        <${Button} onClick=${onClose}>${done ? "Close" : "Cancel"}<//>
        ${!done && html`<${Button} type="submit" kind=${isPreviewed ? "default" : "primary"} busy=${busy && !isPreviewed} disabled=${to === ""} data-test="seek-preview">Preview<//>`}
        ${isPreviewed && html`<${Button} kind="danger" busy=${busy} disabled=${result.at_work.length > 0} onClick=${() => send(false)} data-test="seek-apply">Move offsets<//>`}
      </div>
    </form>
  <//>`;
}
