// OpenAI's client for JavaScript.

import assert from 'node:assert/strict'

import OpenAI from 'openai'

import * as cases from './with_openai.mjs'
import {
  all, ANSWER, CALLER, ENDLESS, main, MODEL, QUESTION, SUNNY, THINKER, TOO_LONG, TOOLS, URL, waitUntilIdle,
  waitUntilWorking, WEATHER, working,
} from './harness.mjs'

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'none is needed', maxRetries: 0 })
const chat = client.chat.completions
const ASK = [{ role: 'user', content: QUESTION }]
const greedy = { model: MODEL, messages: ASK, temperature: 0, max_tokens: 12 }

export async function case_models() {
  const models = await all(client.models.list())
  assert(models.some((model) => model.id === `${MODEL}:latest` && model.object === 'model'))
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL)
}

export async function case_chat() {
  const reply = await chat.create(greedy)
  assert(reply.choices[0].message.content.includes(ANSWER))
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
}

export async function case_stream() {
  const chunks = await all(await chat.create({ ...greedy, stream: true, stream_options: { include_usage: true } }))
  const whole = await chat.create(greedy)
  const text = chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? '').join('')
  assert.equal(text, whole.choices[0].message.content)
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens)
  const helper = chat.stream(greedy)
  assert.equal(await helper.finalContent(), text)
}

export async function case_structured() {
  const schema = {
    type: 'object',
    properties: { name: { type: 'string' }, age: { type: 'integer' } },
    required: ['name', 'age'],
    additionalProperties: false,
  }
  const reply = await chat.parse({
    model: MODEL,
    messages: [{ role: 'user', content: 'Describe Ann, who is 7 years old, as JSON.' }],
    response_format: { type: 'json_schema', json_schema: { name: 'person', schema, strict: true } },
    temperature: 0,
    max_tokens: 80,
  })
  assert(Number.isInteger(JSON.parse(reply.choices[0].message.content).age))
}

export async function case_options_and_logprobs() {
  const reply = await chat.create({ ...greedy, logprobs: true, top_logprobs: 2, stop: ['\n\n'] })
  assert(reply.choices[0].logprobs.content.every((entry) => entry.logprob <= 0 && entry.top_logprobs.length === 2))
  const [first, second] = await Promise.all([1, 2].map(() => chat.create({ ...greedy, temperature: 1.5, seed: 3 })))
  assert.equal(first.choices[0].message.content, second.choices[0].message.content)
  const short = await chat.create({ model: MODEL, messages: ASK, max_completion_tokens: 3 })
  assert.equal(short.choices[0].finish_reason, 'length')
}

export async function case_completions_and_embeddings() {
  const reply = await client.completions.create({ model: MODEL, prompt: QUESTION, temperature: 0, max_tokens: 12 })
  assert(reply.choices[0].text.includes(ANSWER))
  const packed = await client.embeddings.create({ model: MODEL, input: ['one', 'two'] })
  const plain = await client.embeddings.create({ model: MODEL, input: ['one', 'two'], encoding_format: 'float' })
  assert.equal(packed.data[1].embedding.length, 576)
  assert(packed.data[0].embedding.every((value, index) => Math.abs(value - plain.data[0].embedding[index]) < 1e-5))
}

export async function case_responses() {
  const asked = { model: MODEL, input: QUESTION, temperature: 0, max_output_tokens: 12 }
  const reply = await client.responses.create(asked)
  assert(reply.output_text.includes(ANSWER))
  const events = await all(await client.responses.create({ ...asked, stream: true }))
  const text = events.filter((event) => event.type === 'response.output_text.delta').map((event) => event.delta).join('')
  assert.equal(text, reply.output_text)
  const stream = client.responses.stream(asked)
  assert.equal((await stream.finalResponse()).output_text, text)
}

export async function case_errors() {
  await assert.rejects(chat.create({ ...greedy, model: 'nosuch' }), OpenAI.NotFoundError)
  await assert.rejects(chat.create({ ...greedy, model: 'nosuch', stream: true }), OpenAI.NotFoundError)
  await assert.rejects(chat.create({ ...greedy, temperature: -1 }), OpenAI.BadRequestError)
  await assert.rejects(chat.create({ ...greedy, messages: [{ role: 'user', content: TOO_LONG }] }), (error) => {
    assert(error instanceof OpenAI.BadRequestError)
    assert.equal(error.code, 'context_length_exceeded')
    return true
  })
}

export async function case_aborted() {
  await waitUntilIdle()
  const stream = await chat.create({ model: ENDLESS, messages: ASK, stream: true })
  let seen = 0
  for await (const _ of stream) {
    seen += 1
    if (seen === 3) {
      assert.equal(await working(), 1)
      break // which ends the request
    }
  }
  await waitUntilIdle()
  const control = new AbortController()
  const asking = chat.create({ model: ENDLESS, messages: ASK }, { signal: control.signal })
  const refused = assert.rejects(asking, OpenAI.APIUserAbortError)
  await waitUntilWorking()
  control.abort()
  await refused
  await waitUntilIdle()
}

export async function case_tools() {
  const reply = await chat.create({ model: CALLER, messages: SUNNY, tools: [WEATHER] })
  const [choice] = reply.choices
  const [call] = choice.message.tool_calls
  assert.deepEqual([choice.finish_reason, call.type, call.function.name], ['tool_calls', 'function', 'get_weather'])
  assert(['Paris', 'Rome'].includes(JSON.parse(call.function.arguments).city))
  const messages = [...SUNNY, choice.message, { role: 'tool', tool_call_id: call.id, content: 'sunny, 21 degrees' }]
  const answer = await chat.create({ ...greedy, model: TOOLS, messages, tools: [WEATHER] })
  assert(answer.choices[0].message.content.length > 0)
  const streamed = await chat.stream({ model: CALLER, messages: SUNNY, tools: [WEATHER] }).finalChatCompletion()
  assert.equal(streamed.choices[0].message.tool_calls[0].function.name, 'get_weather')
}

export async function case_tool_choice() {
  const asked = { model: TOOLS, messages: SUNNY, tools: [WEATHER], temperature: 0, max_tokens: 60 }
  for (const tool_choice of ['required', { type: 'function', function: { name: 'get_weather' } }]) {
    const [choice] = (await chat.create({ ...asked, tool_choice })).choices
    assert.equal(choice.message.tool_calls[0].function.name, 'get_weather')
  }
}

export async function case_run_tools() {
  const seen = []
  const tool = { ...WEATHER.function, parse: JSON.parse, function: (given) => { seen.push(given.city); return 'sunny' } }
  const runner = chat.runTools(
    { model: CALLER, messages: SUNNY, tools: [{ type: 'function', function: tool }] },
    { maxChatCompletions: 1 },
  )
  await runner.done()
  assert(seen.length === 1 && ['Paris', 'Rome'].includes(seen[0]))
}

export async function case_reasoning() {
  const reply = await chat.create({ model: THINKER, messages: ASK, reasoning_effort: 'low', temperature: 0 })
  assert.match(reply.choices[0].message.reasoning, /asks/)
  assert(reply.choices[0].message.content.endsWith('Paris.'))
}

await main(cases)
