// How far a view is: what its store has of each partition, beside the end of the topic; and the other stores of that topic.

import { ago, bytes, count, duration, exactly } from "/page/parts/numbers.js";
import { Panel, State } from "/page/parts/box.js";
import { html } from "/page/vendor/ui.js";
import { placeText, storeText } from "./standings.js";

/** "412 records, 3 s", in words for none and for not known. */
export function behindText(view) {
  if (view.store === "onread") return "never behind";
  if (view.behind_records === null) return "not known";
  if (view.behind_records === 0) return "at the end";
  const told = [`${count(view.behind_records)} record${view.behind_records === 1 ? "" : "s"}`];
  if (view.behind_batches) told.push(`${count(view.behind_batches)} batch${view.behind_batches === 1 ? "" : "es"}`);
  if (view.behind_seconds !== null) told.push(duration(view.behind_seconds));
  return `${told.join(", ")} behind`;
}

const share = (one) => (one.end ? Math.max(0, Math.min(100, Math.round((100 * one.at) / one.end))) : 100);

export function Place({ view, views }) {
  const { position } = view;
  const others = views.filter((one) => one.topic === view.topic && one.view !== view.view);
  return html`
    <div class="view-place" data-test="place">
      <${Panel} title="What the store has, beside the end of its topic" aside=${behindText(view)}>
        ${position
          ? html`
              <p class="view-lead">
                ${view.written_by
                  ? html`Every batch of flow <a href=${`#/flows/${encodeURIComponent(view.written_by)}`}>${view.written_by}</a> up to
                      <b>${placeText(position)}</b>, whole${view.behind_batches ? html`; the flow has committed <b>${count(view.behind_batches)}</b> more` : "; it has committed no later one"}.`
                  : html`All of topic <a href=${`#/topics/${encodeURIComponent(view.topic)}`}>${view.topic}</a> before these offsets, and nothing behind them.`}
                ${" "}Stored ${ago(Date.parse(position.stored))}.
                ${view.behind_bytes ? html` About ${bytes(view.behind_bytes)} are unread.` : ""}
              </p>
              <table class="view-grid">
                <thead><tr><th>Partition</th><th class="right">Store is at</th><th class="right">End of topic</th><th class="right">Behind</th><th class="view-bar-head"><span class="unseen">Share</span></th></tr></thead>
                <tbody>
                  ${view.partitions.map((one) => html`
                    <tr key=${one.partition}>
                      <td>${one.partition}</td>
                      <td class="right">${exactly(one.at)}</td>
                      <td class="right">${one.end === null ? "not known" : exactly(one.end)}</td>
                      <td class="right">${one.behind === null ? "not known" : exactly(one.behind)}</td>
                      <td><progress class="view-bar" max="100" value=${share(one)} aria-label=${`partition ${one.partition}`}></progress></td>
                    </tr>`)}
                </tbody>
              </table>
              <p class="view-note">Topic as the log names it: <code>${position.topic}</code>. Offsets count marks of transactions too: a store at the end of the last batch has all rows.</p>`
          : html`<p class="view-lead">${view.why || "Nothing was stored yet."}</p>`}
      <//>
      ${others.length
        ? html`
            <${Panel} title=${`Other views of ${view.topic}`}>
              <table class="view-grid">
                <thead><tr><th>View</th><th>Store</th><th>State</th><th>Position</th><th>Lag</th></tr></thead>
                <tbody>
                  ${others.map((one) => html`
                    <tr key=${one.view}>
                      <td><a href=${`#/views/${encodeURIComponent(one.view)}/position`}>${one.view}</a></td>
                      <td>${storeText(one.store)}</td>
                      <td><${State} state=${one.state} kind=${stateOf(one)} /></td>
                      <td>${placeText(one.position)}</td>
                      <td>${behindText(one)}</td>
                    </tr>`)}
                </tbody>
              </table>
            <//>`
        : ""}
    </div>`;
}

/** good, warn or bad, as the whole page says it. */
export function stateOf(view) {
  if (view.state === "not readable" || view.verified?.verdict === "different") return "bad";
  if (view.state !== "serving" || view.dead > 0) return "warn";
  return "good";
}
