// The dialog that prompts for a token. The token is stored only in this tab, and sent only to this server.

import { html, useState } from "/page/vendor/ui.js";
import { token } from "/page/api.js";
import { Button, Dialog, Field } from "/page/parts/box.js";

export function TokenDialog({ refused, done }) {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (text.trim() === "") return;
    token.set(text.trim());
    done(true);
  };
  return html`
    <${Dialog} title="This server needs a token" onClose=${() => done(false)}>
      <form onSubmit=${submit} data-test="token-form">
        <p>The page needs the scope <code>read:operations</code>. Create a token on the machine with the app's data:</p>
        <pre class="code">headrace token create me --scope read:operations</pre>
        <${Field} label="Token" hint="The token is stored in this tab until you close the tab." error=${refused ? "The token is unknown, revoked or expired." : ""}>
          <input type="password" autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} data-test="token" autofocus />
        <//>
        <div class="actions"><${Button} kind="plain" onClick=${() => done(false)}>Not now<//><${Button} kind="primary" type="submit">Use the token<//></div>
      </form>
    <//>`;
}
