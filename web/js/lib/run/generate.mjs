// @ts-check
/** "Generate with it": opens a ready workflow with the LoRA of a run in a tab of its own. */

import { noteInWords } from "../files/settings_files.mjs";
import { button, enable } from "../page/dom.mjs";
import { message } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";

/**
 * @param {{ routes: import("../page/routes.mjs").Routes, open: (graph: any, name: string) => Promise<unknown> }} page
 * @param {() => string | null} run returns the run's id at the click
 * @param {(text: string) => void} say shows why nothing was opened
 */
export function generateButton({ routes, open }, run, say) {
  const made = button(
    t("Generate with it"),
    t("Opens a ready workflow that makes a clip with this LoRA, in a new tab."),
    async () => {
      const id = run();
      if (!id) return;
      enable(made, false);
      try {
        const found = await routes.generate(id);
        await open(noteInWords(found, t("Read me")), t("{run} generate", { run: id }));
      } catch (error) {
        say(told(message(error)));
      } finally {
        enable(made, true);
      }
    },
  );
  made.classList.add("wan-generate");
  return made;
}

/**
 * Opens a workflow in a new tab. A page without tabs asks first, because the shown workflow would be lost.
 * @param {any} app @param {any} graph @param {string} name of the tab
 */
export async function openInTab(app, graph, name) {
  const lost = t("Replace the workflow on the page? Save it first if you need it.");
  if (!app.extensionManager?.workflow && !window.confirm(lost)) return;
  await app.loadGraphData(graph, true, true, name);
}
