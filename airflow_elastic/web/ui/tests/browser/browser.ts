// A browser and a server with made-up runs, for the tests beside this file.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { type Fixture, serve } from "../fixtures/server.ts";

/** On a busy machine everything may take its time. */
export const PATIENCE_MS = 120_000;

export interface Session {
  fixture: Fixture;
  browser: Browser;
  /** Opens an address of the server. */
  open: (query: string, options?: Options) => Promise<Page>;
  close: () => Promise<void>;
}

interface Options {
  width?: number;
  dark?: boolean;
  zone?: string;
}

export async function start(): Promise<Session> {
  const fixture = await serve();
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
  // Pages of one kind share what the browser keeps, as they do for people.
  const contexts = new Map<string, Promise<BrowserContext>>();
  return {
    fixture,
    browser,
    open: async (query, { width = 1280, dark = false, zone = "UTC" } = {}) => {
      const kind = `${width} ${dark} ${zone}`;
      const options = {
        viewport: { width, height: 900 }, colorScheme: dark ? "dark" : "light", timezoneId: zone, reducedMotion: "reduce",
      } as const;
      const context = contexts.get(kind) ?? browser.newContext(options);
      contexts.set(kind, context);
      const page = await (await context).newPage();
      page.setDefaultTimeout(PATIENCE_MS);
      page.on("pageerror", (error) => {
        throw error;
      });
      await page.goto(`${fixture.url}/${query}`);
      return page;
    },
    close: async () => {
      await browser.close();
      await fixture.close();
    },
  };
}

interface Violation {
  id: string;
  impact: string | null;
  nodes: { html: string; failureSummary?: string }[];
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Waits until nothing fades in or out any more: half of a fade has colours that nobody reads. */
async function settled(page: Page): Promise<void> {
  await page.waitForFunction(() =>
    document.getAnimations().every(({ effect, playState }) => playState !== "running" || effect?.getComputedTiming().endTime === Infinity),
  );
}

/** What axe finds serious or critical on a page, or in a part of it, in words. */
export async function serious(page: Page, part = "html"): Promise<string[]> {
  await settled(page);
  await page.evaluate(axe);
  const found = (await page.evaluate(`axe.run(${JSON.stringify(part)}, { resultTypes: ['violations'] })`)) as { violations: Violation[] };
  return found.violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html, failureSummary }) => `${html.slice(0, 200)} ${failureSummary ?? ""}`).join(" | ")}`);
}
