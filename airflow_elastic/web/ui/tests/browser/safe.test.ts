// What a run, a name or a log holds is text, whatever it looks like; and everybody can use the pages.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { serious, type Session, start } from "./browser.ts";

let session: Session;
before(async () => {
  session = await start();
});
after(() => session.close());

const VIEWS = ["overview", "workers", "events", "logs", "checkpoints"];

test("markup and escape codes in names, events and logs stay text", async () => {
  for (const query of ["", ...VIEWS.map((view) => `?run=run/hostile&view=${view}`)]) {
    const page = await session.open(query);
    await page.getByText("onerror=").first().waitFor();
    assert.equal(await page.locator("img").count(), 0);
    assert.equal(await page.locator("script:not([src])").count(), 0);
    assert.doesNotMatch(await page.title(), /^owned$/);
    await page.close();
  }
  const logs = await session.open("?run=run/hostile&view=logs");
  await logs.getByText("<script>document.title='owned'</script>").waitFor();
  await logs.getByRole("button", { name: /kB more/ }).waitFor();
  assert.doesNotMatch(await logs.getByRole("log").innerText(), /[\u0000-\u0008\u000b-\u001f]/);
  await logs.close();
});

for (const [mode, width] of [["light", 1280], ["dark", 390]] as const) {
  test(`axe finds nothing serious, ${mode} and ${width} pixels wide`, async () => {
    for (const query of ["", ...VIEWS.map((view) => `?run=run/slow&view=${view}`), "?run=run/failed"]) {
      const page = await session.open(query, { dark: mode === "dark", width });
      await page.getByText(query === "" ? "gpt-medium-pretrain" : /holds the others up|Failed after/).first().waitFor();
      await page.locator(".el-loading").waitFor({ state: "detached" });
      assert.deepEqual(await serious(page), [], query || "the list");
      await page.close();
    }
  });
}

test("a dialog is named, holds the focus, and axe finds nothing serious in it", async () => {
  const page = await session.open("?run=run/running");
  await page.getByRole("button", { name: "Stop" }).click();
  const dialog = page.getByRole("dialog", { name: "Save, then stop the run" });
  await dialog.waitFor();
  await page.waitForFunction(() => document.activeElement?.closest("[role=dialog]"));
  assert.deepEqual(await serious(page), []);
  await page.close();
});

test("nothing is wider than a phone", async () => {
  for (const query of ["", ...VIEWS.map((view) => `?run=run/slow&view=${view}`), "?run=run/hostile", "?run=run/month"]) {
    const page = await session.open(query, { width: 390 });
    await page.locator(".el-loading").waitFor({ state: "detached" });
    const width = await page.evaluate(() => Math.max(document.documentElement.scrollWidth, ...[...document.querySelectorAll(".elastic")].map((one) => one.scrollWidth)));
    assert.ok(width <= 390, `${query || "the list"} is ${width} pixels wide`);
    await page.close();
  }
});

test("how long the first paint takes", async () => {
  for (const query of ["", "?run=run/running", "?run=run/month"]) {
    const page = await session.open(query);
    await page.getByText(/Elastic runs|gpt-medium-pretrain/).first().waitFor();
    const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0);
    console.log(`first paint of ${query || "the list"}: ${Math.round(paint)} ms`);
    await page.close();
  }
});
