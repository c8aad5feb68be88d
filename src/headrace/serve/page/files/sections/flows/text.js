// Texts about a flow.

import { kindOf } from "/page/parts/box.js";
import { count, duration } from "/page/parts/numbers.js";

export const toneOf = (node) => (node.state === "failed" || node.state === "stopped" ? "bad" : node.cause ? "warn" : kindOf(node.state));

/** Shorten "1 min 30 s" to "1 min". */
export const shortDuration = (s) => duration(s).split(" ").slice(0, 2).join(" ");

export function lagOf(lag) {
  if (lag?.records === null || lag?.records === undefined) return "–";
  if (lag.records === 0) return "0";
  return lag.seconds !== null && lag.seconds >= 1 ? `${count(lag.records)} · ${shortDuration(lag.seconds)}` : count(lag.records);
}

/** Return how many seconds event time is behind the clock, or null for a flow without event time. */
export function watermarkDelay(node, now) {
  return node.watermark_ms === null || node.watermark_ms === undefined || !now ? null : Math.max(0, (now.at_ms - node.watermark_ms) / 1000);
}

export const heldBy = (node) => node.watermark_held_by ?? "";

/** Return the text for a missing watermark. A watermark exists once the flow has read records of every input. */
export const missingWatermarkText = (node) => (heldBy(node) ? `none yet, waits for ${heldBy(node)}` : "no event time");
