// A producer, a consumer group and an administrator of kafkajs: `node kafkajs.mjs HOST:PORT`. Prints one line of JSON.
import kafkajs from 'kafkajs'

const { Kafka, logLevel } = kafkajs
const topic = 'of-kafkajs'
const groupId = 'kafkajs'
const COUNT = 1000
const kafka = new Kafka({ clientId: 'test', brokers: [process.argv[2]], logLevel: logLevel.ERROR })
const said = {}

const admin = kafka.admin()
await admin.connect()
said.created = await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] })

const producer = kafka.producer({ idempotent: true })
await producer.connect()
for (let first = 0; first < COUNT; first += 50) {
  const messages = Array.from({ length: 50 }, (_, at) => ({ key: `${at % 7}`, value: `${first + at}`, headers: { h: '1' } }))
  await producer.send({ topic, messages })
}

const consumer = kafka.consumer({ groupId })
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
const got = new Set()
let received = 0
await new Promise((resolve) => {
  consumer.run({
    eachMessage: async ({ message }) => {
      received += 1
      got.add(message.value.toString())
      if (got.size === COUNT) resolve()
    },
  })
})
said.received = received
said.got = got.size
said.state = (await admin.describeGroups([groupId])).groups[0].state
await consumer.disconnect()

const committed = async () => {
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
  return partitions.map((one) => Number(one.offset)).reduce((one, other) => one + other)
}
said.committed = await committed()
await admin.resetOffsets({ groupId, topic, earliest: true })
said.reset = await committed()
await admin.deleteGroups([groupId])
await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
said.partitions = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
await admin.deleteTopics({ topics: [topic] })
await producer.disconnect()
await admin.disconnect()
console.log(JSON.stringify(said))
