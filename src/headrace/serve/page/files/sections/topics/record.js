// One message, whole: its key, value and headers, as JSON, text or hex.

import { html, useEffect, useState } from "/page/vendor/ui.js";
import { Copy, Dialog, ProblemBox } from "/page/parts/box.js";
import { BytesView } from "/page/parts/bytes_view.js";
import { bytes, exactly } from "/page/parts/numbers.js";

const isCut = (record) => [record.key, record.value, ...record.headers].some((one) => one?.cut);

const Bytes = ({ title, part }) => html`<section class="record-part" data-test=${`record-${title.toLowerCase()}`}><h3>${title}</h3><${BytesView} text=${part?.text ?? null} base64=${part?.base64 ?? null} /></section>`;

export function RecordDialog({ topic, place, found, api, onClose }) {
  const [whole, setWhole] = useState(null);
  const [problem, setProblem] = useState(null);
  const [partition, offset] = place.split(":");
  const record = whole ?? found;
  useEffect(() => {
    if (found && !isCut(found)) return undefined;
    const asked = new AbortController();
    api.get(`/v1/log/topics/${encodeURIComponent(topic)}/record`, { partition, offset }, { signal: asked.signal }).then(
      (told) => setWhole(told.record),
      (error) => asked.signal.aborted || setProblem(error),
    );
    return () => asked.abort();
  }, [place, found === null]);
  return html`<${Dialog} title=${`Partition ${partition}, offset ${exactly(offset)}`} onClose=${onClose} wide=${true}>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${!record && !problem && html`<p class="quiet">Asking for it…</p>`}
    ${record && html`
      <p class="quiet">${record.at_ms === null ? "without a time" : new Date(record.at_ms).toISOString()}, ${bytes((record.key?.size ?? 0) + (record.value?.size ?? 0))} <${Copy} text=${location.href} label="Copy the link to it" /></p>
      <${Bytes} title="Key" part=${record.key} />
      <${Bytes} title="Value" part=${record.value} />
      ${record.headers.length > 0 && html`<section class="record-part" data-test="record-headers"><h3>Headers</h3><dl class="facts">${record.headers.map((one, at) => html`<dt key=${`t${at}`} class="mono">${one.name}</dt><dd key=${`d${at}`} class="mono">${one.text ?? one.base64 ?? "null"}</dd>`)}</dl></section>`}`}
  <//>`;
}
