// @ts-check
/** Problems of a saved step's LoRA. Pure. */

import { counted, t } from "../page/words.mjs";

/** @typedef {{ skipped: number, isEmpty: boolean }} Look number of keys that ComfyUI's loader skips; whether the LoRA has no effect */

/** @param {{ updates?: Record<string, number | null>, passed_over?: number }} line of a saved step @returns {Look} */
export function lookOf({ updates, passed_over: skipped }) {
  const norms = Object.values(updates ?? {});
  return { skipped: skipped ?? 0, isEmpty: norms.length > 0 && norms.every((norm) => norm === 0) };
}

/** @param {Look} look */
export function warningText({ skipped, isEmpty }) {
  if (isEmpty) return t("This LoRA has no effect yet.");
  if (!skipped) return "";
  return counted(
    skipped,
    "ComfyUI's loader skips 1 key of this LoRA.",
    "ComfyUI's loader skips {n} keys of this LoRA.",
  );
}
