// Visits the pages that a real server shows: SITE is its address, with the token. RUNS has names of runs, by commas.
// tests/web/test_real_server.py starts it.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";
import { PATIENCE_MS } from "./browser/browser.ts";

const site = new URL(process.env.SITE ?? "");
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext();
context.setDefaultTimeout(PATIENCE_MS);
const page = await context.newPage();
const faults: string[] = [];
page.on("pageerror", (error) => faults.push(String(error)));
page.on("console", (message) => {
  if (message.type() === "error") faults.push(message.text()); // also what the page's own policy forbids
});
try {
  await page.goto(site.href);
  assert.ok(!page.url().includes("token"), "the address keeps no token");
  for (const name of (process.env.RUNS ?? "").split(",")) {
    await page.goto(site.origin);
    await page.locator(".el-runs tbody tr", { hasText: name }).getByRole("link").click();
    for (const view of ["Overview", "Workers", "Events", "Logs", "Checkpoints"]) {
      await page.getByRole("link", { name: view, exact: true }).click();
      await page.locator(`.el-tabs [aria-current=page]:text-is("${view}")`).waitFor();
      await page.locator(".el-view .el-panel").first().waitFor();
      await page.waitForFunction(() => document.querySelector(".el-loading") === null);
      const shown = await page.locator(".el-view").innerText();
      console.log(`${name}, ${view}: ${shown.replaceAll(/\s+/g, " ").slice(0, 160)}`);
      assert.doesNotMatch(shown, /undefined|\[object|Invalid Date/, `${name}, ${view}`);
      assert.equal(await page.getByRole("alert").count(), 0, `${name}, ${view}: ${shown.slice(0, 500)}`);
    }
  }
  assert.deepEqual(faults, []);
} finally {
  await browser.close();
}
