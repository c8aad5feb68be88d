// A card and a line of the graph. Each is redrawn only when its texts or numbers change.

import { Component, html } from "/page/vendor/ui.js";

const NAME_FONT = "550 14px system-ui, sans-serif";
const SECOND_FONT = "400 12px system-ui, sans-serif";
const measure = document.createElement("canvas").getContext("2d");
const truncatedTexts = new Map();
const TRUNCATED_MAX = 5_000;

/** Truncate a text to a width, because texts in an SVG do not wrap. */
function truncate(text, width, font) {
  const key = `${font}|${width}|${text}`;
  const cached = truncatedTexts.get(key);
  if (cached !== undefined) return cached;
  measure.font = font;
  let cut = text;
  if (measure.measureText(text).width > width) {
    let length = text.length;
    while (length > 1 && measure.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
    cut = `${text.slice(0, length)}…`;
  }
  if (truncatedTexts.size >= TRUNCATED_MAX) truncatedTexts.clear();
  truncatedTexts.set(key, cut);
  return cut;
}

const ICONS = {
  source: html`<path d="M1 7h9M7 3.5L10.5 7L7 10.5M13 2v10" />`,
  topic: html`<path d="M1.5 3h11M1.5 7h11M1.5 11h11" />`,
  flow: html`<path d="M1 10c3 0 3-6 6-6s3 6 6 6M1 4h0" />`,
  view: html`<path d="M1.5 2h11v10h-11zM1.5 5.3h11M5.5 5.3V12" />`,
  group: html`<path d="M4 4V1.5h8.5V10H10M1.5 4H10v8.5H1.5z" />`,
};

const differ = (a, b) => Object.keys(b).some((name) => a[name] !== b[name]);

/** A shallow comparison detects all changes, because all props are texts, numbers, booleans or the same function. */
export class Card extends Component {
  shouldComponentUpdate(next) {
    return differ(this.props, next);
  }

  render({ id, kind, name, href, second, third, tone, mark, label, x, y, width, height, selected, faded, fed, onShow }) {
    const text = width - 42 - (mark ? 8 : 0);
    return html`<a href=${href} class=${`card ${kind} ${tone} ${selected ? "selected" : ""} ${faded ? "faded" : ""}`} aria-label=${label} aria-current=${selected ? "true" : undefined} data-test="node" data-id=${id} onFocus=${onShow}>
      <g transform=${`translate(${x} ${y})`}>
        <title>${label}</title>
        ${kind === "group" && html`<rect class="card-behind" x="5" y="-5" width=${width} height=${height} rx="6" />`}
        <rect class="card-box" width=${width} height=${height} rx=${kind === "source" ? height / 2 : 6} />
        <g class="card-icon" transform=${`translate(12 ${height / 2 - 7})`}>${ICONS[kind]}</g>
        <text class="card-name" x="34" y=${third ? 20 : height / 2 - 4} >${truncate(name, text, NAME_FONT)}</text>
        <text class="card-second" x="34" y=${third ? 37 : height / 2 + 13} data-test="second">${truncate(second, width - 42, SECOND_FONT)}</text>
        ${third && html`<text class="card-second" x="34" y="53">${truncate(third, width - 42, SECOND_FONT)}</text>`}
        ${mark && html`<g class="card-mark" transform=${`translate(${width - 14} 14)`}><path d="M0 -8L8 0L0 8L-8 0z" /><text text-anchor="middle" y="4">!</text></g>`}
        ${fed && html`<path class="card-fed" d=${`M-14 ${height / 2}h9M-9 ${height / 2 - 4}l5 4l-5 4`} />`}
      </g>
    </a>`;
  }
}

export class Line extends Component {
  shouldComponentUpdate(next) {
    return differ(this.props, next);
  }

  render({ id, path, x, y, rate, lag, far, faded }) {
    return html`<g class=${`line ${far ? "warn" : ""} ${faded ? "faded" : ""}`} data-test="edge" data-id=${id}>
      <path class="line-path" d=${path} marker-end="url(#graph-arrow)" />
      ${(rate || lag) && html`<g class="line-label" transform=${`translate(${x} ${y})`}>
        <text class="line-text" text-anchor="middle" y="-5" data-test="edge-rate">${rate}</text>
        ${lag && html`<text class="line-text line-lag" text-anchor="middle" y="13" data-test="edge-lag">${lag}</text>`}
      </g>`}
    </g>`;
  }
}
