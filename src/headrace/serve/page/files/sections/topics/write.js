// The dialog that writes a message. In a topic that the app declares, the value must match the schema.

import { html, useState } from "/page/vendor/ui.js";
import { Button, Dialog, Field, ProblemBox } from "/page/parts/box.js";
import { exactly } from "/page/parts/numbers.js";

function headersOf(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`a header must be "name: value", not ${JSON.stringify(line.slice(0, 40))}`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
}

/** Return the text unchanged, because a number can have more digits than a double. Throw if the text is not JSON. */
function jsonText(text) {
  JSON.parse(text);
  return text;
}

function declaredBody(input) {
  const headers = Object.fromEntries(headersOf(input.headers));
  const parts = input.nothing ? ['"value":null', `"key":${jsonText(input.key)}`] : [`"value":${jsonText(input.value)}`];
  if (Object.keys(headers).length > 0) parts.push(`"headers":${JSON.stringify(headers)}`);
  return `{${parts.join(",")}}`;
}

const rawBody = (input) => ({
  key: input.key === "" ? null : { text: input.key },
  value: input.nothing ? null : { text: input.value },
  headers: headersOf(input.headers).map(([name, text]) => ({ name, text })),
  partition: input.partition === "" ? null : Number(input.partition),
});

export function WriteDialog({ topic, api, onClose, onWritten }) {
  const [input, setInput] = useState({ key: "", value: "", headers: "", partition: "", nothing: false });
  const [problem, setProblem] = useState(null);
  const [written, setWritten] = useState(null);
  const [busy, setBusy] = useState(false);
  const change = (name) => (event) => setInput({ ...input, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  const write = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    setWritten(null);
    const name = encodeURIComponent(topic.topic);
    try {
      const response = topic.declared ? await api.post(`/v1/topics/${name}/records`, declaredBody(input)) : await api.post(`/v1/log/topics/${name}/records`, rawBody(input));
      setWritten(response.records[0]);
      onWritten();
    } catch (error) {
      setProblem(error.name === "Problem" ? error : { title: "Invalid input", detail: error.message });
    }
    setBusy(false);
  };
  return html`<${Dialog} title=${`Write to ${topic.topic}`} onClose=${onClose} wide=${true}>
    <form onSubmit=${write}>
      ${topic.declared && html`<p class="quiet">The app declares this topic. The value must be a JSON object that matches the topic's schema. The key is part of the value.</p>`}
      ${(!topic.declared || input.nothing) && html`<${Field} label="Key" hint=${topic.declared ? "an object with the key fields of the row to delete" : "leave empty to write no key"}><input class="mono" value=${input.key} onInput=${change("key")} data-test="write-key" /><//>`}
      ${!input.nothing && html`<${Field} label="Value"><textarea class="mono" rows="8" spellcheck=${false} value=${input.value} onInput=${change("value")} data-test="write-value"></textarea><//>`}
      <label class="switch"><input type="checkbox" checked=${input.nothing} onChange=${change("nothing")} /> No value (tombstone): deletes the key in a compacted topic</label>
      <${Field} label="Headers" hint="one header per line, in the form name: value"><textarea class="mono" rows="2" spellcheck=${false} value=${input.headers} onInput=${change("headers")}></textarea><//>
      ${!topic.declared && html`<${Field} label="Partition" hint="leave empty to choose the partition by the key"><input inputmode="numeric" pattern="[0-9]*" value=${input.partition} onInput=${change("partition")} /><//>`}
      ${problem && html`<${ProblemBox} problem=${problem} />`}
      ${written && html`<p data-test="written">Written to partition ${written.partition} at offset ${exactly(written.offset)}.</p>`}
      <div class="actions"><${Button} onClick=${onClose}>Close<//><${Button} type="submit" kind="primary" busy=${busy} data-test="write-now">Write<//></div>
    </form>
  <//>`;
}
