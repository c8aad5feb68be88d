// Shows the position of a view and the end of its topic for each partition, and the other views of the topic.

import { ago, bytes, count, duration, exactly } from "/page/parts/numbers.js";
import { Panel, State } from "/page/parts/box.js";
import { html } from "/page/vendor/ui.js";
import { positionText, storeText } from "./status.js";

/** Return "412 records, 3 s behind", "at the end", or "unknown". */
export function behindText(view) {
  if (view.store === "onread") return "never behind";
  if (view.behind_records === null) return "unknown";
  if (view.behind_records === 0) return "at the end";
  const parts = [`${count(view.behind_records)} record${view.behind_records === 1 ? "" : "s"}`];
  if (view.behind_batches) parts.push(`${count(view.behind_batches)} batch${view.behind_batches === 1 ? "" : "es"}`);
  if (view.behind_seconds !== null) parts.push(duration(view.behind_seconds));
  return `${parts.join(", ")} behind`;
}

const share = (partition) => (partition.end ? Math.max(0, Math.min(100, Math.round((100 * partition.at) / partition.end))) : 100);

export function Position({ view, views }) {
  const { position } = view;
  const others = views.filter((other) => other.topic === view.topic && other.view !== view.view);
  return html`
    <div class="view-position" data-test="position">
      <${Panel} title="Position of the store and end of its topic" aside=${behindText(view)}>
        ${position
          ? html`
              <p class="view-lead">
                ${view.written_by
                  ? html`The store has every batch of flow <a href=${`#/flows/${encodeURIComponent(view.written_by)}`}>${view.written_by}</a> up to
                      <b>${positionText(position)}</b>. ${view.behind_batches ? html`The flow has committed <b>${count(view.behind_batches)}</b> more` : "The flow has committed no later batch"}.`
                  : html`The store has all records of topic <a href=${`#/topics/${encodeURIComponent(view.topic)}`}>${view.topic}</a> before these offsets, and no others.`}
                ${" "}Stored ${ago(Date.parse(position.stored))}.
                ${view.behind_bytes ? html` About ${bytes(view.behind_bytes)} are unread.` : ""}
              </p>
              <table class="view-grid">
                <thead><tr><th>Partition</th><th class="right">Store is at</th><th class="right">End of topic</th><th class="right">Behind</th><th class="view-bar-head"><span class="unseen">Share</span></th></tr></thead>
                <tbody>
                  ${view.partitions.map((partition) => html`
                    <tr key=${partition.partition}>
                      <td>${partition.partition}</td>
                      <td class="right">${exactly(partition.at)}</td>
                      <td class="right">${partition.end === null ? "unknown" : exactly(partition.end)}</td>
                      <td class="right">${partition.behind === null ? "unknown" : exactly(partition.behind)}</td>
                      <td><progress class="view-bar" max="100" value=${share(partition)} aria-label=${`partition ${partition.partition}`}></progress></td>
                    </tr>`)}
                </tbody>
              </table>
              <p class="view-note">Name in the log: <code>${position.topic}</code>. Offsets include transaction markers, which have no rows. A store at the end of the last batch has all rows.</p>`
          : html`<p class="view-lead">${view.why || "Nothing is stored yet."}</p>`}
      <//>
      ${others.length
        ? html`
            <${Panel} title=${`Other views of ${view.topic}`}>
              <table class="view-grid">
                <thead><tr><th>View</th><th>Store</th><th>State</th><th>Position</th><th>Lag</th></tr></thead>
                <tbody>
                  ${others.map((view) => html`
                    <tr key=${view.view}>
                      <td><a href=${`#/views/${encodeURIComponent(view.view)}/position`}>${view.view}</a></td>
                      <td>${storeText(view.store)}</td>
                      <td><${State} state=${view.state} kind=${toneOf(view)} /></td>
                      <td>${positionText(view.position)}</td>
                      <td>${behindText(view)}</td>
                    </tr>`)}
                </tbody>
              </table>
            <//>`
        : ""}
    </div>`;
}

/** Return good, warn or bad. */
export function toneOf(view) {
  if (view.state === "not readable" || view.verified?.verdict === "different") return "bad";
  if (view.state !== "serving" || view.dead > 0) return "warn";
  return "good";
}
