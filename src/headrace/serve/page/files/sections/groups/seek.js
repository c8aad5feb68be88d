// Moving a group: what would change is shown before anything does.

import { html, useState } from "/page/vendor/ui.js";
import { Button, Dialog, Field, ProblemBox } from "/page/parts/box.js";
import { exactly } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";

const signed = (n) => (n === null ? "–" : n > 0 ? `+${exactly(n)}` : exactly(n));

const MOVES = [
  { id: "topic", title: "Topic", value: (row) => row.topic },
  { id: "partition", title: "P", about: "Partition", value: (row) => row.partition, align: "right", width: 60 },
  { id: "old", title: "Before", value: (row) => row.old ?? -1, show: (row) => (row.old === null ? html`<span class="quiet">nothing</span>` : exactly(row.old)), align: "right" },
  { id: "new", title: "After", value: (row) => row.new, show: (row) => html`<b>${exactly(row.new)}</b>`, align: "right" },
  { id: "moved", title: "Moves by", value: (row) => row.moved ?? 0, show: (row) => html`<span class=${row.moved < 0 ? "group-back" : ""}>${signed(row.moved)}</span>`, align: "right" },
];

export function SeekDialog({ group, api, onClose, onMoved }) {
  const topics = [...new Set(group.partitions.map((one) => one.topic))];
  const [kind, setKind] = useState("start");
  const [place, setPlace] = useState("");
  const [topic, setTopic] = useState("");
  const [told, setTold] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const to = kind === "place" ? place.trim() : kind;
  const asked = { to, ...(topic ? { topic } : {}) };
  const ask = async (dry_run) => {
    setBusy(true);
    setProblem(null);
    try {
      setTold({ ...(await api.post(`/v1/log/groups/${encodeURIComponent(group.group)}/seek`, { ...asked, dry_run })), asked: JSON.stringify(asked) });
      if (!dry_run) onMoved();
    } catch (error) {
      setTold(null);
      setProblem(error);
    }
    setBusy(false);
  };
  // What is applied is what was looked at.
  const looked = told?.dry_run && told.asked === JSON.stringify(asked);
  const done = told && !told.dry_run;
  return html`<${Dialog} title=${`Move ${group.group}`} onClose=${onClose} wide=${true}>
    <form onSubmit=${(event) => (event.preventDefault(), ask(true))}>
      <div class="seek-places">
        <${Field} label="To"><select value=${kind} onChange=${(event) => setKind(event.target.value)} data-test="seek-to"><option value="start">the first record there is</option><option value="end">the end: only what comes</option><option value="place">another place…</option></select><//>
        ${kind === "place" && html`<${Field} label="Place" hint="47, +10 after the start, -10 before the end, @-1h, @2026-01-31T12:00:00Z"><input class="mono" value=${place} onInput=${(event) => setPlace(event.target.value)} data-test="seek-place" /><//>`}
        <${Field} label="In"><select value=${topic} onChange=${(event) => setTopic(event.target.value)}><option value="">all that it has committed</option>${topics.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select><//>
      </div>
      ${problem && html`<${ProblemBox} problem=${problem} />`}
      ${told?.at_work.length > 0 && !done && html`<p class="seek-busy">At work: ${told.at_work.join(", ")}. They must be stopped first: they would go on where they are, and commit over it.</p>`}
      ${told && html`<div data-test=${done ? "moved" : "would-move"}><p class="quiet">${done ? "It was moved." : "What would change:"}</p><${Table} label="What would change" columns=${MOVES} rows=${told.moves} rowKey=${(row) => `${row.topic}/${row.partition}`} /></div>`}
      <div class="actions">
        <${Button} onClick=${onClose}>${done ? "Close" : "Cancel"}<//>
        ${!done && html`<${Button} type="submit" kind=${looked ? "default" : "primary"} busy=${busy && !looked} disabled=${to === ""} data-test="seek-look">Show what would change<//>`}
        ${looked && html`<${Button} kind="danger" busy=${busy} disabled=${told.at_work.length > 0} onClick=${() => ask(false)} data-test="seek-apply">Move it<//>`}
      </div>
    </form>
  <//>`;
}
