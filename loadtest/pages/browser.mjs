// A browser, and what tests ask of its pages.
import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import puppeteer from 'puppeteer-core';
import { until } from './site.mjs';

const LEVELS = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];
const begun = Date.now();
// The screenshots of the documentation.
const SHOWN = { 'edge-hook-failed': 'edge-page.png', 'origin-without-upstream': 'origin-page.png', 'fleet-problem': 'fleet-page.png' };
let browser, folder, docs, axe;

export const check = (words) => console.log(`ok   ${((Date.now() - begun) / 1000).toFixed(1).padStart(5)} s  ${words}`);

// `where`: the folder of the modules, and of the screenshots. `shown`: that of those of the documentation, if they are wanted.
export async function launch(where, shown) {
  [folder, docs] = [where, shown];
  axe = readFileSync(join(folder, 'node_modules/axe-core/axe.min.js'), 'utf8');
  // Certificates are of an authority of the test.
  browser = await puppeteer.launch({ executablePath: '/usr/bin/chromium-headless-shell', headless: 'shell', acceptInsecureCerts: true, args: ['--no-sandbox', '--disable-gpu'] });
  return browser;
}

// A page of which everything unexpected is a failure: messages of the console, errors, requests to other hosts.
export async function open(address) {
  const page = await browser.newPage();
  page.unexpected = [];
  page.requests = 0;
  page.isOutage = false;
  page.on('console', (message) => {
    // The browser itself tells of an edge that is away, of the 401 before the sign-in, and of what the API refuses.
    const isTold = /Failed to load resource: .*(ERR_CONNECTION|ERR_EMPTY_RESPONSE|40[019])/.test(message.text());
    if (!(page.isOutage && isTold)) page.unexpected.push(`${message.type()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => page.unexpected.push(error.message));
  page.on('dialog', (dialog) => { page.unexpected.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('request', (request) => {
    page.requests += 1;
    if (!request.url().startsWith(address) && !/^(data|about):/.test(request.url())) page.unexpected.push(request.url());
  });
  await page.goto(address);
  return page;
}
export const text = (page, selector) => page.$eval(selector, (node) => node.innerText);
export const says = (page, selector, pattern) => until(`${selector} says ${pattern}`, async () => pattern.test(await text(page, selector)));
export const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
export async function press(page, key, times = 1) { for (let n = 0; n < times; n += 1) await page.keyboard.press(key); }

// No violation of level A and AA in both widths and both colour schemes, and nothing is wider than the window.
export async function look(page, name) {
  const isOpen = await page.$$eval('details', (all) => all.map((one) => one.open));
  for (const scheme of ['light', 'dark']) {
    for (const width of [390, 1280]) {
      await page.setViewport({ width, height: 900 });
      await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
      await page.screenshot({ path: join(folder, `${name}-${width}-${scheme}.png`), fullPage: true });
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(wider <= 0, `${name}: wider than ${width} by ${wider}`);
      await page.$$eval('details', (all) => all.forEach((one) => { one.open = true; }));
      await page.evaluate(axe);
      const { violations } = await page.evaluate((levels) => globalThis.axe.run(document, { runOnly: levels }), LEVELS);
      assert.deepEqual(violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ')}`), [], `${name} ${width} ${scheme}`);
      await page.$$eval('details', (all, was) => all.forEach((one, at) => { one.open = was[at]; }), isOpen);
    }
  }
  if (docs && SHOWN[name]) {
    const path = join(docs, SHOWN[name]);
    await page.setViewport({ width: 800, height: 800 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path });
    assert.ok(statSync(path).size <= 100_000, `${path} has ${statSync(path).size} bytes`);
  }
  check(`${name}: axe finds nothing of level A and AA at 390 and 1280 px, light and dark`);
}
