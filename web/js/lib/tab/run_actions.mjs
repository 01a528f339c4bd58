// @ts-check
/** The actions of an opened run's buttons; each shows a message with its result. */

import { showPreviews } from "../grid/samples_grid.mjs";
import { t } from "../page/words.mjs";
import { deletedText } from "./run_card.mjs";
import { RunClips } from "./run_clips.mjs";

/**
 * @typedef {import("../page/routes.mjs").Routes} Routes
 * @typedef {{ routes: Routes, page: import("./runs_tab.mjs").Page, say: (text: string) => void, failed: (error: unknown) => void,
 *   refresh: () => void, close: () => void }} Doors
 */

/** @param {Doors} doors @returns {import("./run_card.mjs").Actions} */
export function actionsOf({ routes, page, say, failed, refresh, close }) {
  const work =
    (/** @type {(id: string) => Promise<string>} */ act) => async (/** @type {string} */ id) => {
      try {
        say(await act(id));
      } catch (error) {
        failed(error);
      }
    };
  return {
    open: work(async (id) => {
      await page.load(await routes.workflow(id), id);
      return t("Opened the workflow of {run}.", { run: id });
    }),
    resume: work(async (id) => {
      await page.load(await routes.workflow(id), id);
      await page.queue();
      return t("Queued {run}.", { run: id });
    }),
    copy: work(async (name) => {
      await page.copy(name);
      return t("Copied {name}", { name });
    }),
    // The run was trained without ComfyUI, so its LoRA is not in the loader lists.
    use: work(async (id) => {
      const { best, saves } = await routes.detail(id);
      const step = best ?? saves?.at(-1)?.step ?? 0;
      await routes.use(id, step);
      refresh();
      return t("Step {step} is the run's LoRA now.", { step });
    }),
    remove: work(async (id) => {
      try {
        return deletedText(id, await routes.remove(id));
      } finally {
        refresh(); // if a program holds a file open, the run is deleted only in part
      }
    }),
    bytes: (id) => routes.bytes(id),
    log: (id) => routes.log(id),
    say,
    take: (text) => page.copy(text),
    close,
    previews: (id) => showPreviews(id, { routes, address: page.address, used: refresh }),
    clips: (id) => new RunClips(id, { routes, address: page.address, say }),
  };
}
