// @ts-check
/** What is said where another pack has a node of an id of ours. */

import { PREFIX, takenIds } from "./ids.mjs";
import { t } from "./words.mjs";

/** Under which name a tab remembers what it has said. */
const SAID = "wan_trainer.taken";

/**
 * Say once in each tab of the browser who took which ids.
 * @param {string} summary heading of the message
 * @param {{ add(message: object): void } | undefined} toast where the page shows messages
 */
export function sayWhoTookIds(summary, toast) {
  const lines = takenIds().map(({ id, pack }) =>
    t(
      "{pack} has a node called {id} too. Ours is {ours} here, and workflows of ours open with it.",
      {
        pack,
        id,
        ours: `${PREFIX}${id}`,
      },
    ),
  );
  const detail = lines.join("\n");
  if (!lines.length || sessionStorage.getItem(SAID) === detail) return;
  sessionStorage.setItem(SAID, detail);
  console.info(`[${summary}] ${detail}`);
  toast?.add({ severity: "info", summary, detail, life: 15000 });
}
