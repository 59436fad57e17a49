// first_row.mjs FOLDER ADDRESS [SCREENSHOTS]: how long the pages of a large fleet take, while `weir-loadtest questions --look` waits.
// The browser signs in by the operator's certificate, which a relay here has: it counts requests and bytes too.
import http from 'node:http';
import https from 'node:https';
import { readFileSync } from 'node:fs';
import puppeteer from 'puppeteer-core';

const [folder, address, screenshots] = process.argv.slice(2);
const of = (name) => readFileSync(`${folder}/${name}`);
const agent = new https.Agent({ ca: of('ca.pem'), cert: of('operator.pem'), key: of('operator.key'), keepAlive: true });
let answers = [];
const relay = http.createServer((request, response) => {
  const begun = performance.now();
  const asked = https.request(`https://${address}${request.url}`, { method: request.method, agent }, async (answer) => {
    const body = Buffer.concat(await answer.toArray());
    answers.push({ path: request.url, bytes: body.length, ms: Math.round(performance.now() - begun) });
    response.writeHead(answer.statusCode, { 'content-type': answer.headers['content-type'], 'content-security-policy': answer.headers['content-security-policy'] ?? '' });
    response.end(body);
  });
  request.pipe(asked);
});
await new Promise((resolve) => relay.listen(0, '127.0.0.1', resolve));
const browser = await puppeteer.launch({ executablePath: '/usr/bin/chromium-headless-shell', headless: 'shell', args: ['--no-sandbox', '--disable-gpu'] });
const kilobytes = () => Math.round(answers.reduce((sum, { bytes }) => sum + bytes, 0) / 1000);
for (const path of ['', '?label=ring%3D3', '?problem=any', '?show=service-007']) {
  const times = [];
  for (let n = 0; n < 5; n += 1) {
    answers = [];
    const page = await browser.newPage();
    await page.setViewport({ width: 1280, height: 900 });
    page.on('pageerror', (error) => console.log(error.message));
    const begun = performance.now();
    await page.goto(`http://127.0.0.1:${relay.address().port}/${path}`);
    await page.waitForSelector('#services tbody tr, #history tbody tr, #rows tbody tr', { timeout: 60_000 });
    times.push(Math.round(performance.now() - begun));
    if (n === 4) {
      await page.waitForNetworkIdle({ idleTime: 2000 });
      console.log(`/${path}: first row after ${times.join(', ')} ms; ${kilobytes()} kB in ${answers.length} requests`);
      for (const { path: asked, bytes, ms } of answers) console.log(`    ${asked}  ${bytes} bytes, ${ms} ms`);
      answers = [];
      // It refreshes every 10 s.
      await new Promise((resolve) => setTimeout(resolve, 12_000));
      console.log(`  a refresh: ${kilobytes()} kB in ${answers.length} requests, ${answers.map(({ ms }) => ms).join(', ')} ms`);
      if (screenshots) await page.screenshot({ path: `${screenshots}/large${path.replace(/\W/g, '-')}.png`, fullPage: true });
    }
    await page.close();
  }
}
await browser.close();
process.exit(0);
