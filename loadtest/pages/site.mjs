// A real origin, two edges and an agent, in a folder of their own.
import { execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import https from 'node:https';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const TOKEN = 'an-operators-token';
// Of an operator who may see some services.
export const ANAS_TOKEN = 'a-token-of-ana-alone';
// What the failed hook writes: a page must show it as text.
export const WRITTEN = '<img src=x onerror=alert(1)> is broken';

export class Site {
  constructor(binaries) {
    this.binaries = binaries;
    this.folder = mkdtempSync(join(tmpdir(), 'weir-pages-'));
    // Below those of outgoing connections.
    const base = 20000 + (process.pid % 1700) * 7;
    [this.origin, this.edge, this.admin, this.second, this.secondAdmin, this.originAdmin, this.operator] = [0, 1, 2, 3, 4, 5, 6].map((n) => base + n);
    this.running = new Map();
    this.git('init', '--quiet', '--initial-branch=main', this.path('upstream'));
    this.commit('one');
    execFileSync(join(binaries, 'weir'), ['certificates', '--out', this.folder]);
    this.write('operator-token', TOKEN);
    this.write('origin.toml', this.originToml());
    this.write('edge.toml', this.edgeToml('edge-1', this.edge, `127.0.0.1:${this.admin}`, ''));
    this.write('second.toml', this.edgeToml('edge-2', this.second, `0.0.0.0:${this.secondAdmin}`,
      'admin = { operator_token_file = "operator-token", allow_plain = true }'));
    this.write('agent.toml', `name = "cluster-1"
edges = ["https://127.0.0.1:${this.edge}"]
ca = "ca.pem"
client_certificate = "agent.pem"
client_key = "agent.key"
root = "agent-data"
poll_interval = "1s"

[[service]]
name = "shop-prod"
exec = "test ! -e ${this.path('broken')} || { echo '${WRITTEN}' >&2; exit 3; }"
report_output = true
`);
  }

  // `rollout`: the plan of the service.
  originToml(rollout = '', plan = '') {
    return `name = "origin-1"
listen = "127.0.0.1:${this.origin}"
admin_listen = "127.0.0.1:${this.originAdmin}"
operator_listen = "127.0.0.1:${this.operator}"
data_dir = "origin-data"
operator_api = { operator_token_file = "operator-token" }
operator = [{ name = "ana", role = "view", services = ["shop-*"], token_sha256 = "${createHash('sha256').update(ANAS_TOKEN).digest('hex')}" }]
tls = { certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }
repository = [{ name = "shop", url = "${this.path('upstream')}", poll_interval = "1s", min_poll_interval = "1s" }]
service = [{ name = "shop-prod", repository = "shop"${rollout} }]
${plan}
`;
  }

  edgeToml(name, port, admin, rest) {
    return `name = "${name}"
listen = "127.0.0.1:${port}"
admin_listen = "${admin}"
tls = { certificate = "edge.pem", key = "edge.key" }
cache = { dir = "${name}-cache" }
freshness = { fresh = "1s" }
auth = { client_ca = "ca.pem" }
origin = [{ url = "https://127.0.0.1:${this.origin}", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }]
${rest}
`;
  }

  path(name) { return join(this.folder, name); }
  write(name, text) { writeFileSync(this.path(name), text); }
  git(...options) { execFileSync('git', ['-c', 'user.name=weir', '-c', 'user.email=weir@example.org', ...options]); }
  commit(text, checkout = 'upstream') {
    this.write(`${checkout}/file`, text);
    this.git('-C', this.path(checkout), 'add', 'file');
    this.git('-C', this.path(checkout), 'commit', '--quiet', `--message=${text}`);
    return execFileSync('git', ['-C', this.path(checkout), 'rev-parse', 'HEAD'], { encoding: 'utf8' }).trim();
  }

  start(program, config) {
    const child = spawn(join(this.binaries, program), ['--config', this.path(config)], { stdio: ['ignore', 'ignore', 'pipe'] });
    const log = [];
    child.stderr.on('data', (data) => log.push(data));
    this.running.set(config, { child, log });
  }
  // Lets the origin stage new commits by a plan.
  rollOutByPlan() {
    this.write('origin.toml', this.originToml(', rollout = "careful"',
      'rollout = [{ name = "careful", stages = [{ name = "canary", agents = "cluster-*", approve = true }, { name = "all" }] }]'));
    this.running.get('origin.toml').child.kill('SIGHUP');
  }
  async kill(config) {
    const { child } = this.running.get(config);
    if (child.exitCode === null && child.signalCode === null) {
      const ended = new Promise((resolve) => child.once('exit', resolve));
      child.kill('SIGKILL');
      await ended;
    }
    this.running.delete(config);
  }
  async end() {
    for (const config of [...this.running.keys()]) await this.kill(config);
    rmSync(this.folder, { recursive: true });
  }
  logs() {
    return [...this.running].map(([name, { log }]) => `== ${name}\n${Buffer.concat(log).toString().split('\n').slice(-15).join('\n')}`).join('\n');
  }
  // What the operators' API answers; with a body it changes something.
  operators(path, body) {
    const options = { ca: readFileSync(this.path('ca.pem')), method: body ? 'POST' : 'GET', headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' } };
    return new Promise((resolve, reject) => {
      const request = https.request(`https://127.0.0.1:${this.operator}${path}`, options, async (answer) => resolve(JSON.parse(Buffer.concat(await answer.toArray()).toString())));
      request.on('error', reject);
      request.end(body && JSON.stringify(body));
    });
  }
  // What `weir` prints as JSON.
  weir(...options) {
    return JSON.parse(execFileSync(join(this.binaries, 'weir'), [...options, '--output', 'json', '--server', `https://127.0.0.1:${this.operator}`,
      '--ca', this.path('ca.pem'), '--token-file', this.path('operator-token')], { encoding: 'utf8' }));
  }
  async ask(path, port = this.admin) { return (await fetch(`http://127.0.0.1:${port}${path}`)).json(); }
}

// Waits for a condition, as its own time needs.
export async function until(what, condition, seconds = 60) {
  const begun = Date.now();
  for (;;) {
    const value = await Promise.resolve().then(condition).catch(() => false);
    if (value) return value;
    if (Date.now() - begun > 1000 * seconds) throw new Error(`in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
