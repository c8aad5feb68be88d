// Shows bytes as formatted JSON, text or hexadecimal, never as HTML.

import { html, useMemo, useState } from "/page/vendor/ui.js";
import { Copy, Tabs } from "/page/parts/box.js";
import { bytes as formatBytes } from "/page/parts/numbers.js";

const CHARS_MAX = 256 * 1024;
const HEX_MAX = 16 * 1024;

function decoded(base64) {
  try {
    return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

function asJson(text) {
  if (text === null || !/^\s*[[{"\-\dtfn]/.test(text)) return null;
  try {
    // Keep digits that a double cannot represent.
    const keepDigits = (_, value, context) => (typeof value === "number" && context && JSON.rawJSON ? JSON.rawJSON(context.source) : value);
    return JSON.stringify(JSON.parse(text, keepDigits), null, 2);
  } catch {
    return null;
  }
}

function asHex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MAX); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const printable = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.slice(0, 8).join(" ").padEnd(23)}  ${hex.slice(8).join(" ").padEnd(23)}  ${printable}`);
  }
  return lines.join("\n");
}

/** Pass `text` if the bytes are text, otherwise `base64`. Both are null for a tombstone or a missing key. */
export function BytesView({ text = null, base64 = null, none = "null" }) {
  const [chosen, setChosen] = useState(null);
  const bytes = useMemo(() => (text !== null ? new TextEncoder().encode(text) : base64 !== null ? decoded(base64) : null), [text, base64]);
  const json = useMemo(() => asJson(text), [text]);
  if (bytes === null) return html`<p class="quiet">${none}</p>`;
  const tabs = [
    ...(json !== null ? [{ id: "json", title: "JSON" }] : []),
    ...(text !== null ? [{ id: "text", title: "Text" }] : []),
    { id: "hex", title: "Hex" },
  ];
  const current = tabs.some((tab) => tab.id === chosen) ? chosen : tabs[0].id;
  const fullText = current === "json" ? json : current === "text" ? text : asHex(bytes);
  const cut = current === "hex" ? bytes.length > HEX_MAX : fullText.length > CHARS_MAX;
  return html`<div class="bytes-view">
    <div class="bytes-head"><${Tabs} tabs=${tabs} current=${current} onChange=${setChosen} label="Format" /><span class="quiet">${formatBytes(bytes.length)}</span><${Copy} text=${text ?? base64} /></div>
    <pre class="code" tabindex="0" data-test="bytes">${cut ? fullText.slice(0, CHARS_MAX) : fullText}</pre>
    ${cut && html`<p class="quiet">Only the beginning is shown. The Copy button copies everything.</p>`}
  </div>`;
}
