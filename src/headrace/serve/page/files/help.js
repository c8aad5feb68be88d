// The help dialog: keyboard shortcuts and a link to the API.

import { html } from "/page/vendor/ui.js";
import { Dialog } from "/page/parts/box.js";

const KEYS = [
  ["/", "search in this section, or go to a topic, flow, view or section by name"],
  ["↑ ↓", "move in a table; Enter opens a row; Home and End go to the first and last row"],
  ["Esc", "close a dialog, or leave a field"],
  ["?", "this help"],
];

export const HelpDialog = ({ sections, onClose }) => html`
  <${Dialog} title="Keys" onClose=${onClose}>
    <table class="keys" data-test="help-table">
      <caption class="unseen">Keys of the page</caption>
      <tbody>
        ${sections.map((section) => html`<tr key=${section.id}><th scope="row"><kbd>g</kbd> <kbd>${section.key}</kbd></th><td>${section.title}</td></tr>`)}
        ${KEYS.map(([key, what]) => html`<tr key=${key}><th scope="row">${key.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</th><td>${what}</td></tr>`)}
      </tbody>
    </table>
    <p class="quiet">Every section, search and row has its own address, which you can copy from the address bar. Programs can use <a href="/docs">the API</a>.</p>
  <//>`;
