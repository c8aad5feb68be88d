// The dead letters of a topic, newest first, with the bytes of a selected letter and a button to replay letters.

import { html, useEffect, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Button, Empty, Panel, ProblemBox, State } from "/page/parts/box.js";
import { BytesView } from "/page/parts/bytes_view.js";
import { ago, bytes, time } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { recordText, ReplayDialog } from "/page/sections/dead/replay.js";

const PAGE = 100;

const keyOf = (row) => `${row.partition}/${row.offset}`;
const at = (row) => Date.parse(row.time);

const StateOf = ({ row }) =>
  row.replayed
    ? html`<${State} state="written back" kind="good" title=${`to ${recordText(row.replayed.to)}`} />`
    : row.cannot
      ? html`<${State} state="cannot be written back" kind="warn" title=${row.cannot} />`
      : html`<${State} state="pending" kind="bad" />`;

const valueText = (row) => (row.value !== undefined ? (row.value ?? "null") : `${bytes(row.value_bytes)} of binary data`);

/** The columns of the table. While a letter is open, its panel shows the value instead of the table. */
const columns = (now_ms, chosen, choose, open) => [
  { id: "choose", title: "", sort: false, width: 34, value: () => "", show: (row) => html`<input type="checkbox" aria-label=${`Choose letter ${keyOf(row)}`} data-test="choose" checked=${chosen.has(keyOf(row))} disabled=${row.cannot !== ""} onChange=${(event) => choose(row, event.target.checked)} />` },
  { id: "state", title: "State", value: (row) => (row.replayed ? "written back" : row.cannot ? "cannot be written back" : "pending"), show: (row) => html`<${StateOf} row=${row} />` },
  { id: "time", title: "When", value: at, show: (row) => html`<span title=${time(at(row))}>${ago(at(row), now_ms)}</span>` },
  { id: "reason", title: "Reason", value: (row) => row.reason || row.exception || "unknown" },
  { id: "origin", title: "Original record", value: (row) => recordText(row.origin) },
  { id: "value", title: "Value", value: valueText, show: (row) => html`<span class="mono">${valueText(row).slice(0, 200)}</span>`, phone: false },
].filter((column) => !open || column.id !== "value");

/** Return the letters of all loaded pages. `reload` starts again with the first page. */
function useLetters(api, topic) {
  const [pages, setPages] = useState({ letters: null, next: null });
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const load = async (path, before) => {
    setBusy(true);
    try {
      const page = await api.get(path, path.includes("?") ? {} : { limit: PAGE });
      setPages({ letters: [...before, ...page.letters], next: page.next });
      setProblem(null);
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const reload = () => load(`/v1/dead/${encodeURIComponent(topic)}/letters`, []);
  useEffect(() => {
    reload();
  }, [topic]);
  return { ...pages, problem, busy, reload, more: () => load(pages.next, pages.letters) };
}

const Letter = ({ row }) => html`
  <dl class="facts">
    <dt>Reason</dt><dd>${row.reason || "unknown"}${row.exception && html` <span class="quiet">(${row.exception})</span>`}</dd>
    <dt>Original record</dt><dd>${row.origin ? html`<a href=${address("topics", [row.origin.topic])}>${recordText(row.origin)}</a>` : "unknown"}</dd>
    <dt>Rejected at</dt><dd>${time(at(row))}</dd>
    <dt>Written back</dt><dd>${row.replayed ? `${time(Date.parse(row.replayed.at))}, to ${recordText(row.replayed.to)}` : row.cannot ? `not possible: ${row.cannot}` : "not yet"}</dd>
    ${row.headers.map((header, number) => html`<dt key=${`h${number}`}>Header ${header.name}</dt><dd class="mono">${header.value ?? header.value_base64 ?? "null"}</dd>`)}
  </dl>
  <h3 class="dead-part">Key</h3>
  <${BytesView} text=${row.key ?? null} base64=${row.key_base64 ?? null} none="No key." />
  <h3 class="dead-part">Value</h3>
  <${BytesView} text=${row.value ?? null} base64=${row.value_base64 ?? null} />
  ${row.value_cut && html`<p class="quiet">Truncated: the whole value has ${bytes(row.value_bytes)}.</p>`}`;

export function Letters({ topic, letterPath, now, go, api }) {
  const { letters, next, problem, busy, reload, more } = useLetters(api, topic);
  const [chosen, setChosen] = useState(new Map());
  const [replaying, setReplaying] = useState(null);
  const choose = (row, isChosen) =>
    setChosen((old) => {
      const changed = new Map(old);
      if (isChosen) changed.set(keyOf(row), { partition: row.partition, offset: row.offset });
      else changed.delete(keyOf(row));
      return changed;
    });
  const closed = () => {
    setReplaying(null);
    setChosen(new Map());
    reload();
  };
  const open = letters?.find((row) => keyOf(row) === letterPath.join("/"));
  return html`<div class="page-head">
      <h1><a class="crumb" href=${address("dead")}>Dead letters</a> ${topic}</h1>
      <div class="page-aside">
        <${Button} busy=${busy} onClick=${reload}>Refresh<//>
        <${Button} disabled=${chosen.size === 0} onClick=${() => setReplaying([...chosen.values()])} data-test="replay-chosen">Write back ${chosen.size > 0 ? chosen.size : "chosen"}…<//>
        <${Button} kind="primary" disabled=${!letters?.length} onClick=${() => setReplaying("all")} data-test="replay-all">Write all back…<//>
      </div>
    </div>
    <${ProblemBox} problem=${problem} />
    ${letterPath.length > 0 && letters !== null && !open && html`<p class="quiet" data-test="not-among">Letter ${letterPath.join("/")} is not among the newest ${letters.length}${next ? ". Load older letters below" : ". The topic has no other letters"}.</p>`}
    ${letters === null
      ? !problem && html`<p class="quiet">Reading the letters…</p>`
      : letters.length === 0
        ? html`<${Empty} title="No dead letters" text="All records were accepted." />`
        : html`<div class=${open ? "dead-split" : ""}>
            <${Panel} title="Letters" aside="newest first">
              <${Table} label="Dead letters" columns=${columns(now?.at_ms, chosen, choose, open)} rows=${letters} rowKey=${keyOf} selected=${open && keyOf(open)} onOpen=${(row) => go("dead", [topic, String(row.partition), String(row.offset)])} find=${true} />
              ${next && html`<div class="actions"><${Button} busy=${busy} onClick=${more}>Load older<//></div>`}
            <//>
            ${open && html`<${Panel} title=${`Letter ${keyOf(open)}`} data-test="letter" aside=${html`<${Button} kind="plain" onClick=${() => go("dead", [topic])}>Close<//>`}><${Letter} row=${open} /><//>`}
          </div>`}
    ${replaying && html`<${ReplayDialog} topic=${topic} letters=${replaying} api=${api} onClose=${closed} />`}`;
}
