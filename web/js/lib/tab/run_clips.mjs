// @ts-check
/** The clips of a run in the list: the player of the panel, the suggested step with its reason, "Use this step". */

import { showPreviews } from "../grid/samples_grid.mjs";
import { element, write } from "../page/dom.mjs";
import { samplePath } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { Player } from "../panel/player.mjs";
import { SuggestionLine } from "../panel/suggestion_line.mjs";
import { RunHistory } from "../run/history.mjs";

export class RunClips {
  /**
   * @param {string} run
   * @param {{ routes: import("../page/routes.mjs").Routes, address: (path: string) => string,
   *   say: (text: string) => void }} page `address` turns a route's path into an address for a video element
   */
  constructor(run, { routes, address, say }) {
    this.run = run;
    this.routes = routes;
    this.say = say;
    this.history = new RunHistory();
    const use = (/** @type {number} */ step) => this.use(step);
    const all = () => showPreviews(run, { routes, address, used: () => this.read() });
    this.player = new Player((sample) => address(samplePath(run, sample.id)), use, all);
    this.suggestion = new SuggestionLine(use);
    this.none = element("p", { class: "wan-hint", role: "status" }, t("Reading …"));
    this.element = element(
      "section",
      { class: "wan-run-clips", "aria-label": t("Clips of {run}", { run }) },
      this.none,
      this.player.element,
      this.suggestion.element,
    );
  }

  /** Reads new data of the run. */
  async read() {
    try {
      const answer = () => this.routes.metrics(this.run, this.history.lines);
      while (this.history.take(this.history.lines, await answer()));
      const detail = await this.routes.detail(this.run);
      const canUse = !detail.live;
      this.player.take(detail, this.history);
      const inUse = canUse ? (detail.in_use ?? null) : null;
      this.player.suggest(this.history.suggestion?.best ?? null, canUse, inUse);
      const hasClips = !this.player.element.hidden;
      this.suggestion.draw(this.history.suggestion, { inUse, canUse, hasClips });
      this.none.hidden = Boolean(detail.samples?.length);
      write(this.none, t("This run has no clips."));
    } catch (error) {
      this.none.hidden = false;
      write(this.none, told(error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {number} step the saved step that becomes the run's LoRA, or both LoRAs of a pair */
  async use(step) {
    try {
      await this.routes.use(this.run, step);
      this.say(t("Step {step} is the run's LoRA now.", { step }));
    } catch (error) {
      this.say(told(error instanceof Error ? error.message : String(error)));
    }
    await this.read();
  }
}
