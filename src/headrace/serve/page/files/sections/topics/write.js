// Writing one message. What the app declares is checked by its schema; elsewhere bytes are bytes.

import { html, useState } from "/page/vendor/ui.js";
import { Button, Dialog, Field, ProblemBox } from "/page/parts/box.js";
import { exactly } from "/page/parts/numbers.js";

function headersOf(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`a header is "name: value", and ${JSON.stringify(line.slice(0, 40))} is none`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
}

/** As it was typed: a number may have more digits than one of JavaScript's. Throws if it is no JSON. */
function jsonText(text) {
  JSON.parse(text);
  return text;
}

function declared(given) {
  const headers = Object.fromEntries(headersOf(given.headers));
  const parts = given.nothing ? ['"value":null', `"key":${jsonText(given.key)}`] : [`"value":${jsonText(given.value)}`];
  if (Object.keys(headers).length > 0) parts.push(`"headers":${JSON.stringify(headers)}`);
  return `{${parts.join(",")}}`;
}

const raw = (given) => ({
  key: given.key === "" ? null : { text: given.key },
  value: given.nothing ? null : { text: given.value },
  headers: headersOf(given.headers).map(([name, text]) => ({ name, text })),
  partition: given.partition === "" ? null : Number(given.partition),
});

export function WriteDialog({ topic, api, onClose, onWritten }) {
  const [given, setGiven] = useState({ key: "", value: "", headers: "", partition: "", nothing: false });
  const [problem, setProblem] = useState(null);
  const [written, setWritten] = useState(null);
  const [busy, setBusy] = useState(false);
  const change = (name) => (event) => setGiven({ ...given, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  const write = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    setWritten(null);
    const name = encodeURIComponent(topic.topic);
    try {
      const told = topic.declared ? await api.post(`/v1/topics/${name}/records`, declared(given)) : await api.post(`/v1/log/topics/${name}/records`, raw(given));
      setWritten(told.records[0]);
      onWritten();
    } catch (error) {
      setProblem(error.name === "Problem" ? error : { title: "It cannot be read", detail: error.message });
    }
    setBusy(false);
  };
  return html`<${Dialog} title=${`Write to ${topic.topic}`} onClose=${onClose} wide=${true}>
    <form onSubmit=${write}>
      ${topic.declared && html`<p class="quiet">The app declares this topic: the value is a JSON object that fits its schema, and the key follows from it.</p>`}
      ${(!topic.declared || given.nothing) && html`<${Field} label="Key" hint=${topic.declared ? "an object of the key's fields: what is deleted" : "empty: none"}><input class="mono" value=${given.key} onInput=${change("key")} data-test="write-key" /><//>`}
      ${!given.nothing && html`<${Field} label="Value"><textarea class="mono" rows="8" spellcheck=${false} value=${given.value} onInput=${change("value")} data-test="write-value"></textarea><//>`}
      <label class="switch"><input type="checkbox" checked=${given.nothing} onChange=${change("nothing")} /> No value: it deletes the key, where a topic is kept by key</label>
      <${Field} label="Headers" hint="one on each line, as name: value"><textarea class="mono" rows="2" spellcheck=${false} value=${given.headers} onInput=${change("headers")}></textarea><//>
      ${!topic.declared && html`<${Field} label="Partition" hint="empty: as the key decides"><input inputmode="numeric" pattern="[0-9]*" value=${given.partition} onInput=${change("partition")} /><//>`}
      ${problem && html`<${ProblemBox} problem=${problem} />`}
      ${written && html`<p data-test="written">Written to partition ${written.partition} at offset ${exactly(written.offset)}.</p>`}
      <div class="actions"><${Button} onClick=${onClose}>Close<//><${Button} type="submit" kind="primary" busy=${busy} data-test="write-now">Write it<//></div>
    </form>
  <//>`;
}
