// The letters of a topic, the newest first; one of them with its bytes; and the way to write them back.

import { html, useEffect, useState } from "/page/vendor/ui.js";
import { address } from "/page/address.js";
import { Button, Empty, Panel, ProblemBox, State } from "/page/parts/box.js";
import { BytesView } from "/page/parts/bytes_view.js";
import { ago, bytes, time } from "/page/parts/numbers.js";
import { Table } from "/page/parts/table.js";
import { ReplayDialog } from "/page/sections/dead/replay.js";
import { placeText } from "/page/sections/dead/words.js";

const PAGE = 100;

const keyOf = (row) => `${row.partition}/${row.offset}`;
const at = (row) => Date.parse(row.time);

const StateOf = ({ row }) =>
  row.replayed
    ? html`<${State} state="written back" kind="good" title=${`to ${placeText(row.replayed.to)}`} />`
    : row.cannot
      ? html`<${State} state="cannot go back" kind="warn" title=${row.cannot} />`
      : html`<${State} state="waits" kind="bad" />`;

const shown = (row) => (row.value !== undefined ? (row.value ?? "null") : `${bytes(row.value_bytes)} that are no text`);

/** Beside an open letter there is no room for values, and it shows its own. */
const columns = (now_ms, chosen, choose, open) => [
  { id: "choose", title: "", sort: false, width: 34, value: () => "", show: (row) => html`<input type="checkbox" aria-label=${`Choose letter ${keyOf(row)}`} data-test="choose" checked=${chosen.has(keyOf(row))} disabled=${row.cannot !== ""} onChange=${(event) => choose(row, event.target.checked)} />` },
  { id: "state", title: "State", value: (row) => (row.replayed ? "written back" : row.cannot ? "cannot go back" : "waits"), show: (row) => html`<${StateOf} row=${row} />` },
  { id: "time", title: "When", value: at, show: (row) => html`<span title=${time(at(row))}>${ago(at(row), now_ms)}</span>` },
  { id: "reason", title: "Reason", value: (row) => row.reason || row.exception || "not told" },
  { id: "origin", title: "Came from", value: (row) => placeText(row.origin) },
  { id: "value", title: "Value", value: shown, show: (row) => html`<span class="mono">${shown(row).slice(0, 200)}</span>`, phone: false },
].filter((one) => !open || one.id !== "value");

/** All pages that were asked for; `again` asks for the first anew. */
function useLetters(api, topic) {
  const [told, setTold] = useState({ letters: null, next: null });
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const ask = async (path, before) => {
    setBusy(true);
    try {
      const page = await api.get(path, path.includes("?") ? {} : { limit: PAGE });
      setTold({ letters: [...before, ...page.letters], next: page.next });
      setProblem(null);
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const again = () => ask(`/v1/dead/${encodeURIComponent(topic)}/letters`, []);
  useEffect(() => {
    again();
  }, [topic]);
  return { ...told, problem, busy, again, more: () => ask(told.next, told.letters) };
}

const Letter = ({ row }) => html`
  <dl class="facts">
    <dt>Reason</dt><dd>${row.reason || "not told"}${row.exception && html` <span class="quiet">(${row.exception})</span>`}</dd>
    <dt>Came from</dt><dd>${row.origin ? html`<a href=${address("topics", [row.origin.topic])}>${placeText(row.origin)}</a>` : "no topic is named"}</dd>
    <dt>Became a letter</dt><dd>${time(at(row))}</dd>
    <dt>Written back</dt><dd>${row.replayed ? `${time(Date.parse(row.replayed.at))}, to ${placeText(row.replayed.to)}` : row.cannot ? `cannot be: ${row.cannot}` : "not yet"}</dd>
    ${row.headers.map((one, number) => html`<dt key=${`h${number}`}>Header ${one.name}</dt><dd class="mono">${one.value ?? one.value_base64 ?? "null"}</dd>`)}
  </dl>
  <h3 class="dead-part">Key</h3>
  <${BytesView} text=${row.key ?? null} base64=${row.key_base64 ?? null} none="It has no key." />
  <h3 class="dead-part">Value</h3>
  <${BytesView} text=${row.value ?? null} base64=${row.value_base64 ?? null} />
  ${row.value_cut && html`<p class="quiet">It has ${bytes(row.value_bytes)}; this is the beginning.</p>`}`;

export function Letters({ topic, place, now, go, api }) {
  const { letters, next, problem, busy, again, more } = useLetters(api, topic);
  const [chosen, setChosen] = useState(new Map());
  const [replaying, setReplaying] = useState(null);
  const choose = (row, wanted) =>
    setChosen((old) => {
      const made = new Map(old);
      if (wanted) made.set(keyOf(row), { partition: row.partition, offset: row.offset });
      else made.delete(keyOf(row));
      return made;
    });
  const closed = () => {
    setReplaying(null);
    setChosen(new Map());
    again();
  };
  const open = letters?.find((row) => keyOf(row) === place.join("/"));
  return html`<div class="page-head">
      <h1><a class="crumb" href=${address("dead")}>Dead letters</a> ${topic}</h1>
      <div class="page-aside">
        <${Button} busy=${busy} onClick=${again}>Look again<//>
        <${Button} disabled=${chosen.size === 0} onClick=${() => setReplaying([...chosen.values()])} data-test="replay-chosen">Write back ${chosen.size > 0 ? chosen.size : "chosen"}…<//>
        <${Button} kind="primary" disabled=${!letters?.length} onClick=${() => setReplaying("all")} data-test="replay-all">Write all back…<//>
      </div>
    </div>
    <${ProblemBox} problem=${problem} />
    ${place.length > 0 && letters !== null && !open && html`<p class="quiet" data-test="not-among">Letter ${place.join("/")} is not among the newest ${letters.length}${next ? ": older ones are below" : ", and there are no others"}.</p>`}
    ${letters === null
      ? !problem && html`<p class="quiet">Reading the letters…</p>`
      : letters.length === 0
        ? html`<${Empty} title="There are no dead letters here" text="Everything that came was taken." />`
        : html`<div class=${open ? "dead-split" : ""}>
            <${Panel} title="Letters" aside="the newest first">
              <${Table} label="Dead letters" columns=${columns(now?.at_ms, chosen, choose, open)} rows=${letters} rowKey=${keyOf} selected=${open && keyOf(open)} onOpen=${(row) => go("dead", [topic, String(row.partition), String(row.offset)])} find=${true} />
              ${next && html`<div class="actions"><${Button} busy=${busy} onClick=${more}>Older ones<//></div>`}
            <//>
            ${open && html`<${Panel} title=${`Letter ${keyOf(open)}`} data-test="letter" aside=${html`<${Button} kind="plain" onClick=${() => go("dead", [topic])}>Close<//>`}><${Letter} row=${open} /><//>`}
          </div>`}
    ${replaying && html`<${ReplayDialog} topic=${topic} letters=${replaying} api=${api} onClose=${closed} />`}`;
}
