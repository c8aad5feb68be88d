// What the keyboard does, and where more is said.

import { html } from "/page/vendor/ui.js";
import { Dialog } from "/page/parts/box.js";

const KEYS = [
  ["/", "find in this section, or go to anything by its name"],
  ["↑ ↓", "move in a table; Enter opens, Home and End go to its ends"],
  ["Esc", "close, or leave a field"],
  ["?", "this help"],
];

export const HelpDialog = ({ sections, onClose }) => html`
  <${Dialog} title="Keys" onClose=${onClose}>
    <table class="keys" data-test="help-table">
      <caption class="unseen">Keys of the page</caption>
      <tbody>
        ${sections.map((one) => html`<tr key=${one.id}><th scope="row"><kbd>g</kbd> <kbd>${one.key}</kbd></th><td>${one.title}</td></tr>`)}
        ${KEYS.map(([key, what]) => html`<tr key=${key}><th scope="row">${key.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</th><td>${what}</td></tr>`)}
      </tbody>
    </table>
    <p class="quiet">Every place has an address: copy it from the address bar. For programs: <a href="/docs">the routes</a>.</p>
  <//>`;
