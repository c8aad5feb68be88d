// Bytes as what they may be: JSON in order, text as it is, or hexadecimal. Never as markup.

import { html, useMemo, useState } from "/page/vendor/ui.js";
import { Copy, Tabs } from "/page/parts/box.js";
import { bytes as sized } from "/page/parts/numbers.js";

const SHOWN_MAX = 256 * 1024;
const HEX_MAX = 16 * 1024;

function decoded(base64) {
  try {
    return Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

function asJson(text) {
  if (text === null || !/^\s*[[{"\-\dtfn]/.test(text)) return null;
  try {
    // Digits that a double does not hold are kept as they were written.
    const kept = (_, value, context) => (typeof value === "number" && context && JSON.rawJSON ? JSON.rawJSON(context.source) : value);
    return JSON.stringify(JSON.parse(text, kept), null, 2);
  } catch {
    return null;
  }
}

function asHex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MAX); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((one) => one.toString(16).padStart(2, "0"));
    const shown = row.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.slice(0, 8).join(" ").padEnd(23)}  ${hex.slice(8).join(" ").padEnd(23)}  ${shown}`);
  }
  return lines.join("\n");
}

/** `text` where the bytes are text, or `base64` where they are not; both null is a tombstone or a key that is not there. */
export function BytesView({ text = null, base64 = null, none = "null: there are no bytes" }) {
  const [chosen, setChosen] = useState(null);
  const bytes = useMemo(() => (text !== null ? new TextEncoder().encode(text) : base64 !== null ? decoded(base64) : null), [text, base64]);
  const json = useMemo(() => asJson(text), [text]);
  if (bytes === null) return html`<p class="quiet">${none}</p>`;
  const tabs = [
    ...(json !== null ? [{ id: "json", title: "JSON" }] : []),
    ...(text !== null ? [{ id: "text", title: "Text" }] : []),
    { id: "hex", title: "Hex" },
  ];
  const current = tabs.some((one) => one.id === chosen) ? chosen : tabs[0].id;
  const whole = current === "json" ? json : current === "text" ? text : asHex(bytes);
  const cut = current === "hex" ? bytes.length > HEX_MAX : whole.length > SHOWN_MAX;
  return html`<div class="bytes-view">
    <div class="bytes-head"><${Tabs} tabs=${tabs} current=${current} onChange=${setChosen} label="Shown as" /><span class="quiet">${sized(bytes.length)}</span><${Copy} text=${text ?? base64} /></div>
    <pre class="code" tabindex="0" data-test="bytes">${cut ? whole.slice(0, SHOWN_MAX) : whole}</pre>
    ${cut && html`<p class="quiet">Only the beginning is shown; Copy has all of it.</p>`}
  </div>`;
}
