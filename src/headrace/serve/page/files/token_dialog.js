// Asked for when the server wants a token. It is kept for this tab only, and goes nowhere but to this server.

import { html, useState } from "/page/vendor/ui.js";
import { token } from "/page/api.js";
import { Button, Dialog, Field } from "/page/parts/box.js";

export function TokenDialog({ refused, done }) {
  const [text, setText] = useState("");
  const give = (event) => {
    event.preventDefault();
    if (text.trim() === "") return;
    token.set(text.trim());
    done(true);
  };
  return html`
    <${Dialog} title="This server wants a token" onClose=${() => done(false)}>
      <form onSubmit=${give} data-test="token-form">
        <p>To watch the app it needs the scope <code>read:operations</code>. Make one where the app's data is:</p>
        <pre class="code">headrace token create me --scope read:operations</pre>
        <${Field} label="Token" hint="Kept in this tab until it is closed." error=${refused ? "The token was not known, was revoked, or has expired." : ""}>
          <input type="password" autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} data-test="token" autofocus />
        <//>
        <div class="actions"><${Button} kind="plain" onClick=${() => done(false)}>Not now<//><${Button} kind="primary" type="submit">Use it<//></div>
      </form>
    <//>`;
}
