// @ts-check
/** Notifies of the end of a run, if enabled: a desktop notification, or a tone if notifications are not allowed. */

import { element } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { keep, kept } from "./kept.mjs";

const KEY = "notify";
const TONE = { hertz: 660, seconds: 0.4, volume: 0.1 };

export class Notifier {
  constructor() {
    this.box = element("input", { type: "checkbox", onchange: () => this.tick() });
    this.box.checked = kept(KEY);
    const hint = t(
      "A desktop notification, or a tone if the browser does not allow notifications.",
    );
    this.element = element(
      "label",
      { class: "wan-notify", title: hint },
      this.box,
      ` ${t("Notify me when a run ends")}`,
    );
  }

  tick() {
    keep(KEY, this.box.checked);
    // Browsers ask for permission only after a click.
    if (this.box.checked && globalThis.Notification?.permission === "default")
      Notification.requestPermission();
  }

  /** @param {string} run @param {string} text how it ended */
  say(run, text) {
    if (!kept(KEY)) return;
    // Several panels and pages may show the run; notifications with the same tag replace each other.
    if (globalThis.Notification?.permission === "granted")
      new Notification(run, { body: text, tag: `wan_trainer ${run}` });
    else tone();
  }
}

function tone() {
  const audio = new AudioContext();
  const sound = new OscillatorNode(audio, { frequency: TONE.hertz });
  sound.connect(new GainNode(audio, { gain: TONE.volume })).connect(audio.destination);
  sound.onended = () => audio.close();
  sound.start();
  sound.stop(audio.currentTime + TONE.seconds);
}
