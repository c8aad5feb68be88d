// What is said of a flow.

import { kindOf } from "/page/parts/box.js";
import { count, duration } from "/page/parts/numbers.js";

export const toneOf = (node) => (node.state === "failed" || node.state === "stopped" ? "bad" : node.cause ? "warn" : kindOf(node.state));

/** "1 min" of "1 min 30 s": where there is no room for more. */
export const coarse = (s) => duration(s).split(" ").slice(0, 2).join(" ");

export function lagOf(lag) {
  if (lag?.records === null || lag?.records === undefined) return "–";
  if (lag.records === 0) return "0";
  return lag.seconds !== null && lag.seconds >= 1 ? `${count(lag.records)} · ${coarse(lag.seconds)}` : count(lag.records);
}

/** Seconds that event time is behind the clock; null for a flow without event time. */
export function waterDelay(node, now) {
  return node.watermark_ms === null || node.watermark_ms === undefined || !now ? null : Math.max(0, (now.at_ms - node.watermark_ms) / 1000);
}

export const heldBy = (node) => node.watermark_held_by ?? "";

/** In the place of a watermark that is not there: it comes with the first batch that has seen every input. */
export const noWatermark = (node) => (heldBy(node) ? `none yet, waits for ${heldBy(node)}` : "no event time");
