// Shows one message: key, value and headers, as JSON, text or hex.

import { html, useEffect, useState } from "/page/vendor/ui.js";
import { Copy, Dialog, ProblemBox } from "/page/parts/box.js";
import { BytesView } from "/page/parts/bytes_view.js";
import { bytes, exactly } from "/page/parts/numbers.js";

const isCut = (record) => [record.key, record.value, ...record.headers].some((part) => part?.cut);

const Bytes = ({ title, part }) => html`<section class="record-part" data-test=${`record-${title.toLowerCase()}`}><h3>${title}</h3><${BytesView} text=${part?.text ?? null} base64=${part?.base64 ?? null} /></section>`;

export function RecordDialog({ topic, id, listed, api, onClose }) {
  const [whole, setWhole] = useState(null);
  const [problem, setProblem] = useState(null);
  const [partition, offset] = id.split(":");
  const record = whole ?? listed;
  useEffect(() => {
    if (listed && !isCut(listed)) return undefined;
    const controller = new AbortController();
    api.get(`/v1/log/topics/${encodeURIComponent(topic)}/record`, { partition, offset }, { signal: controller.signal }).then(
      (response) => setWhole(response.record),
      (error) => controller.signal.aborted || setProblem(error),
    );
    return () => controller.abort();
  }, [id, listed === null]);
  return html`<${Dialog} title=${`Partition ${partition}, offset ${exactly(offset)}`} onClose=${onClose} wide=${true}>
    ${problem && html`<${ProblemBox} problem=${problem} />`}
    ${!record && !problem && html`<p class="quiet">Loading the record…</p>`}
    ${record && html`
      <p class="quiet">${record.at_ms === null ? "no timestamp" : new Date(record.at_ms).toISOString()}, ${bytes((record.key?.size ?? 0) + (record.value?.size ?? 0))} <${Copy} text=${location.href} label="Copy a link to the record" /></p>
      <${Bytes} title="Key" part=${record.key} />
      <${Bytes} title="Value" part=${record.value} />
      ${record.headers.length > 0 && html`<section class="record-part" data-test="record-headers"><h3>Headers</h3><dl class="facts">${record.headers.map((header, at) => html`<dt key=${`t${at}`} class="mono">${header.name}</dt><dd key=${`d${at}`} class="mono">${header.text ?? header.base64 ?? "null"}</dd>`)}</dl></section>`}`}
  <//>`;
}
