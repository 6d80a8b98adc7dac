// The page of `ropewalk serve`. The conversation and the key live in this page's memory only. What a model writes becomes
// text, never markup.
'use strict';

const $ = id => document.getElementById(id);
const make = (tag, kind, text) => {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
};
const number = n => n.toLocaleString('en-US');
const tokens = n => `${number(n)} ${n === 1 ? 'token' : 'tokens'}`;
const seconds = s => s < 90 ? `${Math.max(1, Math.round(s))} s` : `${Math.round(s / 60)} min`;

let key = '';
let served = null;
let talk = [];
// What runs: its abort controller. What the last answer was: plan, tokens, and the messages of its prompt.
let running = null;
let last = null;
// What scores its prompt, what runs a self-test, and whether cached texts are asked for.
let scoring = null;
let testing = null;
let listing = false;

// Browsers have their own words for it, and some say only "Failed to fetch".
const lost = error => { throw error.name === 'AbortError' ? error : new Error('The connection to the server failed.'); };

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'omit' }).catch(lost);
  if (answer.ok) return answer;
  let message = `The server answered with status ${answer.status}.`;
  try { message = (await answer.json()).error.message; } catch { /* No error object: the status says it. */ }
  if (answer.status === 401) wantKey();
  throw Object.assign(new Error(message), { status: answer.status });
}

const post = (path, body, signal) =>
  ask(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), signal });

function wantKey() {
  if (key) $('refused').textContent = 'The server refuses this key.';
  key = '';
  $('entry').hidden = false;
  $('key').focus();
}

$('entry').addEventListener('submit', event => {
  event.preventDefault();
  key = $('key').value.trim();
  // A header holds nothing else.
  if (!/^[\x21-\x7e]+$/.test(key)) { wantKey(); return; }
  $('refused').textContent = '';
  start();
});

async function start() {
  try {
    const { data } = await (await ask('v1/models')).json();
    const { selftest } = await (await ask('props')).json();
    served = { id: data[0].id, trained: data[0].meta.n_ctx_train, plans: data[0].ropewalk, tests: selftest };
  } catch (error) {
    say(error.status === 401 ? '' : error.message);
    return;
  }
  $('entry').hidden = true;
  $('send').disabled = false;
  $('key').value = '';
  $('model').textContent = $('model').title = served.id;
  document.title = `${served.id} - ropewalk`;
  const chosen = $('plan').value;
  const option = (value, text) => new Option(text, value);
  $('plan').replaceChildren(
    option('', 'auto: the first with room'),
    ...served.plans.map(plan => option(plan.rope, `${plan.rope}: ${room(plan)}`)));
  $('plan').value = chosen;
  describe();
  empty();
  say('');
  $('text').focus();
  count();
}

const room = plan => plan.n_ctx > 1e9 ? 'any length' : `up to ${tokens(plan.n_ctx)}`;

// The chosen plan, or each.
const picked = () => served.plans.filter(plan => !$('plan').value || plan.rope === $('plan').value);

// What is worth knowing about them.
function describe() {
  const list = picked();
  const items = list.flatMap(plan => {
    const far = plan.beyond_trained
      ? `beyond the ${tokens(served.trained)} that the model was trained with`
      : 'within the trained window';
    const first = make('li', plan.beyond_trained ? 'beyond' : '', `${plan.rope}: ${room(plan)}, ${far}`);
    const tests = served.tests.filter(test => test.rope === plan.rope).map(({ found, samples, n, measured }) => make('li', '',
      `${plan.rope}: found ${found} of ${samples} hidden numbers at ${tokens(n)}, measured ${
        new Date(1000 * measured).toISOString().slice(0, 10)}`));
    return list.length > 1 ? [first, ...tests] : [first, ...tests, ...plan.notes.map(note => make('li', '', note))];
  });
  $('notes').replaceChildren(...items);
}

function empty() {
  if (!talk.length && !$('log').childElementCount) {
    $('log').append(make('li', 'empty', `Write a message to ${served.id}.`));
  }
}

function say(text) { $('state').textContent = text; }

// Shows a text that grows: paragraphs, and blocks of code between fences. A line that may still become a fence waits.
function view(into) {
  let into_code = false, text = null, held = '', shown = 0, breaks = '';
  const put = more => {
    if (!text) {
      text = document.createTextNode('');
      const block = make(into_code ? 'code' : 'p');
      block.append(text);
      if (into_code) {
        const pre = make('pre');
        pre.tabIndex = 0;
        pre.append(block);
        into.append(pre);
      } else {
        into.append(block);
      }
    }
    text.appendData(breaks + more);
    breaks = '';
  };
  const end = line => {
    if (!shown && /^ {0,3}```/.test(line)) {
      into_code = !into_code;
      text = null;
      breaks = '';
    } else if (text || line) {
      // Ends of lines wait for the next one: none is shown at the end of a block.
      if (line.length > shown) put(line.slice(shown));
      breaks += '\n';
    }
    shown = 0;
  };
  return {
    add(more) {
      const lines = (held + more).split('\n');
      held = lines.pop();
      lines.forEach(end);
      if (shown || !/^ {0,3}(`{0,2}$|```)/.test(held)) {
        if (held.length > shown) put(held.slice(shown));
        shown = held.length;
      }
    },
    finish() {
      if (held.length > shown) put(held.slice(shown));
      held = '';
      shown = 0;
    },
  };
}

function entry(role, title) {
  const item = make('li', role);
  item.append(make('h3', '', title));
  $('log').querySelector('.empty')?.remove();
  $('log').append(item);
  return item;
}

// Keeps the end in sight for readers who are there.
function follow(change) {
  const log = $('log');
  const there = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (there) log.scrollTop = log.scrollHeight;
}

// The data of server-sent events, up to the last.
async function* events(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) throw new Error('The connection ended before the answer.');
    const parts = (rest + decoder.decode(value, { stream: true })).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (part === 'data: [DONE]') return;
      if (part.startsWith('data: ')) yield JSON.parse(part.slice(6));
    }
  }
}

// The time left, from the speed of the last steps: later ones are slower.
function reading() {
  const steps = [];
  return progress => {
    const { processed, total } = progress;
    steps.push([performance.now(), processed]);
    if (steps.length > 6) steps.shift();
    const [[since, first]] = steps;
    const rate = (processed - first) / (performance.now() - since);
    const left = rate > 0 ? `, about ${seconds((total - processed) / rate / 1000)} left` : '';
    const beyond = total > served.trained ? `; ${tokens(total - served.trained)} beyond the trained window` : '';
    $('bar').max = total;
    $('bar').value = processed;
    $('left').textContent = processed < total ? `${number(processed)} of ${tokens(total)}${left}${beyond}` : '';
    $('reading').hidden = processed >= total;
  };
}

function request(messages) {
  const system = $('system').value;
  const body = {
    model: served.id,
    messages: system ? [{ role: 'system', content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
  };
  if ($('plan').value) body.rope = $('plan').value;
  if ($('temperature').value !== '') body.temperature = Number($('temperature').value);
  if ($('most').value !== '') body.max_tokens = Number($('most').value);
  return body;
}

function busy(is) {
  $('send').hidden = $('fresh').disabled = is;
  $('stop').hidden = !is;
  if (!is) $('reading').hidden = true;
  offer();
}

async function send() {
  const text = $('text').value;
  if (!text.trim() || running || !served) return;
  const user = { role: 'user', content: text };
  const asked = entry('user', 'You');
  const words = view(asked);
  words.add(text);
  words.finish();
  $('text').value = '';
  grow();
  $('log').scrollTop = $('log').scrollHeight;
  running = new AbortController();
  busy(true);
  const body = request([...talk, user]);
  say('Waiting');
  const answer = { role: 'assistant', content: '' };
  let item = null, shown, thinking, about = null, usage = null, rope = '';
  const progress = reading();
  const take = delta => follow(() => {
    if (!item) {
      item = entry('assistant', served.id);
      shown = view(item);
      say(`Answering under ${rope}`);
      $('reading').hidden = true;
    }
    if (delta.reasoning_content) {
      if (!thinking) {
        const box = make('details');
        box.append(make('summary', '', 'Thinking'));
        item.append(box);
        thinking = view(box);
      }
      answer.reasoning_content = (answer.reasoning_content ?? '') + delta.reasoning_content;
      thinking.add(delta.reasoning_content);
    }
    if (delta.content) {
      answer.content += delta.content;
      shown.add(delta.content);
    }
  });
  let failed = null;
  try {
    const response = await post('v1/chat/completions', body, running.signal);
    rope = response.headers.get('x-ropewalk-rope') ?? '';
    say(`Reading the prompt under ${rope}`);
    $('rope').textContent = rope;
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      if (event.prompt_progress) progress(event.prompt_progress);
      for (const choice of event.choices ?? []) take(choice.delta);
      about = event.ropewalk ?? about;
      if (event.timings) about.timings = event.timings;
      usage = event.usage ?? usage;
    }
  } catch (error) {
    failed = error;
  }
  const stopped = failed?.name === 'AbortError';
  follow(() => {
    thinking?.finish();
    shown?.finish();
    if (stopped) {
      (item ?? asked).append(make('p', 'about', 'Stopped.'));
    } else if (failed) {
      (item ?? asked).append(make('p', 'error', failed.message));
    } else {
      conclude(item, about, usage, body.messages);
    }
  });
  if (item) {
    talk.push(user, answer);
  } else {
    // Nothing came: the message is there to be sent again, and the conversation is as it was.
    asked.classList.add('lost');
    if (!$('text').value) $('text').value = text;
    grow();
  }
  say(stopped ? 'Stopped' : failed ? 'No answer' : 'Done');
  running = null;
  busy(false);
  if ($('entry').hidden) $('text').focus();
  count();
}

// What the server says of an answer: under the message, and next to the conversation.
function conclude(item, about, usage, messages) {
  const { prompt_tokens: prompt, completion_tokens: made, total_tokens: total } = usage;
  const cached = about.cached.tokens;
  const parts = [about.rope];
  if (last && last.rope !== about.rope) parts.push(`the conversation was read again, because ${last.rope} has other keys`);
  parts.push(`${tokens(prompt)} of prompt, ${number(cached)} of them cached`);
  if (cached > 0 && about.cached.differs_at !== null) {
    parts.push(`the cached text differs from token ${number(about.cached.differs_at)} on`);
  }
  parts.push(`${tokens(made)} of answer, ${about.timings.predicted_per_second.toFixed(1)} a second`);
  if (about.stop === 'length') parts.push('ended by the most tokens allowed');
  if (about.stop === 'context') parts.push('ended because the context is full');
  if (about.preempted) parts.push('set aside for older requests and continued');
  item.append(make('p', 'about', parts.join('; ')));
  const over = total - about.n_ctx_trained;
  if (about.beyond_trained) {
    item.classList.add('beyond');
    item.append(make('p', 'badge', `${tokens(over)} beyond the trained window of ${number(about.n_ctx_trained)}`));
  }
  last = { rope: about.rope, n: total, messages };
  $('rope').textContent = about.spec === about.rope ? about.rope : `${about.rope} (${about.spec})`;
  $('verdict').className = about.beyond_trained ? 'beyond' : '';
  $('verdict').textContent = about.beyond_trained
    ? `The conversation is ${tokens(over)} longer than what the model was trained with.`
    : `The conversation is within the ${tokens(about.n_ctx_trained)} that the model was trained with.`;
  measure({ cached, read: prompt - cached, made }, total, about);
  if ($('mapped').open) drawMap();
  if ($('costs').open) drawCosts();
}

// The length of the request against the plan's and the trained one.
function measure(parts, total, about) {
  const trained = about.n_ctx_trained;
  // A plan without end has no scale: show what is in use.
  const scale = Math.max(total, Math.min(about.n_ctx, 4 * Math.max(trained, total)));
  const within = Math.min(trained, scale);
  const names = { cached: 'from the cache', read: 'read', made: 'answered' };
  const set = (name, n, text) => {
    $('window').querySelector(`span.${name}`).style.width = `${100 * n / scale}%`;
    $('window').querySelector(`li.${name}`).textContent = n > 0 ? text : '';
  };
  for (const [name, n] of Object.entries(parts)) set(name, n, `${number(n)} ${names[name]}`);
  set('within', within, `trained window, ${number(trained)}`);
  const end = about.n_ctx > 1e9 ? 'without end' : `up to ${number(about.n_ctx)}`;
  set('past', scale - within, `beyond it, ${end}`);
  $('window').hidden = false;
}

async function drawMap() {
  if (!served) return;
  const chosen = $('plan').value || served.plans[0].rope;
  const plan = served.plans.find(plan => plan.rope === chosen);
  const { rope, n } = last ?? { rope: chosen, n: Math.min(plan.n_ctx, 4 * served.trained) };
  const map = $('map');
  $('large').hidden = true;
  URL.revokeObjectURL(map.src);
  try {
    const answer = await ask(`map?rope=${encodeURIComponent(rope)}&n=${n}`);
    map.src = $('large').href = URL.createObjectURL(await answer.blob());
    map.alt = `Distances at which each of ${tokens(n)} sees the earlier ones under ${rope}`;
    $('large').hidden = false;
    $('said').textContent = `${rope}, ${tokens(n)}`;
  } catch (error) {
    $('said').textContent = error.message.replace(/^rope: /, '');
  }
}

// How little the model expected each token of the last prompt. It is read once more for that, or its scores are cached.
async function drawCosts() {
  const bounds = [1, 3, 6], most = 4096;
  scoring?.abort();
  $('surprise').replaceChildren();
  $('cost').textContent = last ? 'Reading the prompt' : 'No request yet.';
  if (!last) return;
  const { signal } = scoring = new AbortController();
  try {
    const { rope, messages } = last;
    const { tokens: prompt } = await (await post('tokenize', { messages }, signal)).json();
    const { tokens: texts, scores: [{ nll, mean }] } = await (await post('v1/score', { prompt, rope }, signal)).json();
    const first = Math.max(0, texts.length - most);
    $('surprise').replaceChildren(...texts.slice(first).map((text, i) => {
      const nats = nll[first + i];
      const token = make('span', `nats${bounds.filter(bound => nats >= bound).length}`, text);
      token.title = nats === null ? 'not predicted' : `${nats.toFixed(2)} nats`;
      return token;
    }));
    const shown = first ? `; the last ${tokens(most)} of ${number(texts.length)}` : '';
    $('cost').textContent = `${mean.toFixed(2)} nats a token; darker ones were expected less${shown}`;
  } catch (error) {
    if (error.name !== 'AbortError') $('cost').textContent = error.message;
  }
}

// A self-test would only wait while requests run.
function offer() {
  const others = /[1-9]/.test($('running').textContent + $('waiting').textContent);
  $('test').disabled = !served || testing || running || others;
}

// Tests the chosen plan, or each in turn, so that results show as they come.
async function selftest() {
  const plans = picked();
  let end = 'Self-test done', kind = '';
  testing = new AbortController();
  $('halt').hidden = false;
  $('halt').focus();
  offer();
  $('tested').className = '';
  try {
    for (const [i, { rope }] of plans.entries()) {
      $('tested').textContent = `Testing ${rope}${plans.length > 1 ? `, ${i + 1} of ${plans.length}` : ''}`;
      const { results } = await (await post('selftest', { model: served.id, rope }, testing.signal)).json();
      served.tests = [...served.tests.filter(test => test.rope !== rope), ...results];
      describe();
    }
  } catch (error) {
    [end, kind] = error.name === 'AbortError' ? ['Self-test stopped', ''] : [error.message, 'error'];
  }
  $('tested').className = kind;
  $('tested').textContent = end;
  testing = null;
  await count();
  if (document.activeElement === $('halt')) $('test').focus();
  $('halt').hidden = true;
}

// What the cache holds of requests with this key.
async function listKept() {
  if (listing || !$('kept').open) return;
  listing = true;
  try {
    const slots = await (await ask('slots')).json();
    const line = slot => `${slot.ropewalk.rope}: ${tokens(slot.n_past)}${slot.is_processing ? ', in use' : ''}`;
    const items = slots.map(slot => make('li', '', line(slot)));
    $('slots').replaceChildren(...(items.length ? items : [make('li', '', 'None')]));
  } catch { /* They are asked for again. */ }
  listing = false;
}

// Counts of the server, from its metrics.
async function count() {
  listKept();
  let text;
  try { text = await (await ask('metrics')).text(); } catch { return; }
  const cells = new Map();
  for (const line of text.split('\n')) {
    const found = /^ropewalk_(running|waiting|cells)(?:\{plan="((?:[^"\\]|\\.)*)",state="(\w+)"\})? (\d+)$/.exec(line);
    if (!found) continue;
    const [, name, plan, state, n] = found;
    if (name !== 'cells') {
      $(name).textContent = number(Number(n));
    } else {
      cells.set(plan, { ...cells.get(plan), [state]: Number(n) });
    }
  }
  $('cells').replaceChildren(...[...cells].map(([plan, { used = 0, free = 0 }]) => {
    const item = make('li', '', `${plan.replace(/\\(.)/g, '$1')}: ${number(used)} of ${number(used + free)} cells`);
    const meter = make('meter');
    meter.max = used + free;
    meter.value = used;
    meter.setAttribute('aria-label', `cells in use under ${plan}`);
    item.append(meter);
    return item;
  }));
  offer();
}

function grow() {
  const text = $('text');
  text.style.height = 'auto';
  text.style.height = `${text.scrollHeight + 2}px`;
}

$('compose').addEventListener('submit', event => {
  event.preventDefault();
  send();
});
$('text').addEventListener('input', grow);
$('text').addEventListener('keydown', event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') running?.abort();
});
$('stop').addEventListener('click', () => running?.abort());
$('test').addEventListener('click', selftest);
$('halt').addEventListener('click', () => testing?.abort());
$('plan').addEventListener('change', () => {
  describe();
  if ($('mapped').open && !last) drawMap();
});
$('mapped').addEventListener('toggle', () => { if ($('mapped').open) drawMap(); });
$('costs').addEventListener('toggle', () => { if ($('costs').open) drawCosts(); else scoring?.abort(); });
$('kept').addEventListener('toggle', listKept);
$('toggle').addEventListener('click', () => {
  const open = document.body.classList.toggle('open');
  $('toggle').setAttribute('aria-expanded', String(open));
  $('toggle').textContent = open ? 'Chat' : 'Details';
  if (open) count();
});
$('fresh').addEventListener('click', () => {
  talk = [];
  last = null;
  $('log').replaceChildren();
  $('window').hidden = true;
  $('verdict').textContent = '';
  if ($('costs').open) drawCosts();
  $('rope').textContent = 'No request yet.';
  say('');
  if (served) empty();
  $('text').focus();
});
setInterval(() => {
  const seen = document.visibilityState === 'visible' && $('side').offsetParent !== null;
  if (served && $('entry').hidden && seen) count();
}, 3000);
start();
