"""Story plots as plain text: blank lines separate the beats, and each line of a beat is one way to tell it.

Slots: a, he, him, his, He, His are the hero; b, b_he, b_him, b_his, b_He the friend; elder is a relative; animal,
thing, adj, place, place2, home, food, kid, trait, time, weather are drawn once a story and stay the same in all beats.
"""

OPENING = """
Once upon a time there was a {trait} {kid} named {a}. {He} lived in {home} with {his} {elder}.
Once upon a time, in {home}, there lived a {trait} {kid} called {a}.
Once upon a time there lived a {kid} whose name was {a}. {He} was {trait}, and everyone liked {him}.
One {time} {a} woke up early. It was {weather}, and {he} could not stay in bed.
One {time} a {trait} {kid} named {a} was sitting in front of {home}. It was {weather}.
One day a {kid} named {a} had nothing to do. It was {weather}, and {his} {elder} was busy.
Long ago, in {home}, there was a {kid} called {a}, and a very {trait} {kid} {he} was.
There was once a {kid} named {a} who was very {trait}. {He} lived in {home}.
{a} was a {trait} {kid}. {He} lived in {home} with {his} {elder}.
In {home} there lived a {kid} named {a}. {He} was {trait}, but {he} was never unkind.
It was {weather}, and {a} wanted an adventure. {He} was a {trait} {kid} who lived in {home}.
"""

ENDING = """
From that day on, {a} was never quite the same, and {he} was glad of it.
And that is how the {trait} {kid} learned to trust {his} own heart.
That night {a} told {his} {elder} everything, and they laughed until the moon was high.
{a} went home, ate a big plate of {food}, and slept well.
When {he} came home, {his} {elder} was waiting with {food}. It was the best day of the year.
And every {time} after that, {a} thought of {place} and smiled.
And they all lived happily ever after.
{a} was tired but happy. "Good night, world," {he} said, and soon {he} was asleep.
"Tomorrow," said {a}, "we will do it all again." And they did.
"""

LOST = """
{a} had a {adj} {thing} that {he} took everywhere. {He} even slept with it under {his} pillow.
More than anything, {a} loved {his} {adj} {thing}. It had been a gift from {his} {elder}.
{His} {elder} had given {him} a {adj} {thing}, and {a} was very proud of it.

But when {a} came back from {place}, the {thing} was gone.
But that day {he} looked in {his} bag, and the {thing} was not there.
One day {he} took the {thing} to {place}, and on the way home {he} lost it.

{a} looked under the bed, behind the door and in the garden. There was no {thing} anywhere.
"Oh no," said {a}. "Where is my {thing}?" {He} looked everywhere, but {he} could not find it.
{a} sat down and began to cry. "I will never see my {thing} again," {he} said.

Just then {his} friend {b} came by. "Do not be sad," said {b}. "I will help you look."
{His} friend {b} heard the news. "Let us go back to {place}," said {b}. "Maybe it is still there."
"What is wrong?" asked {his} friend {b}. {a} told {b_him} about the {thing}, and {b} took {his} hand.

So they went to {place} together. Behind a big stone they met a {animal}. "Have you seen a {adj} {thing}?" asked {a}.
At {place} they asked a {animal}. The {animal} thought for a while. "A {adj} {thing}?" it said. "Follow me."
They walked to {place}. A {animal} was sleeping there, and it opened one eye when it heard them.

The {animal} led them to {place2}, and there was the {thing}, under a leaf.
"I found something at {place2}," said the {animal}. And there it was, the {adj} {thing}, safe and dry.
The {animal} smiled and stepped to one side. It had kept the {thing} warm all night long.

"Thank you, thank you!" said {a}. {He} hugged {b}, and {he} hugged the {animal} too.
{a} was so happy that {he} danced. {b} danced too, and the {animal} clapped.
"How can I thank you?" asked {a}. "Be our friend," said the {animal}. And so {he} was.
"""

RESCUE = """
On the way to {place}, {a} heard a small sound. It came from behind a tree.
{a} went to {place} to pick flowers. There {he} heard somebody crying.
When {a} was walking near {place}, {he} saw something move in the grass.

It was a little {animal}. Its foot was hurt, and it could not walk.
A young {animal} lay there, cold and hungry. It looked at {a} with big eyes.
There sat a very small {animal}. "I have lost my way," it said, "and I am so tired."

"You poor thing," said {a}. {He} put the {animal} in {his} coat and took it home.
"Do not be afraid," said {a}. {He} gave the {animal} some {food} and carried it home.
{a} did not wait. {He} picked up the {animal}, held it close, and ran all the way home.

{His} {elder} made a bed of straw, and {a} brought warm milk every morning and every evening.
For seven days {a} took care of the {animal}. {He} told it stories and sang it songs.
"We must keep it warm," said {his} {elder}. So {a} put {his} own blanket around the {animal}.

Soon the {animal} was strong again. It jumped around the kitchen and made everyone laugh.
Little by little the {animal} grew strong. One day it could run faster than {a}.
At last the {animal} could walk. "Now I must go home," it said, and {a} was a little sad.

The next winter {a} was lost in the snow near {place2}. It was dark, and {he} called for help.
Then one night a storm came. {a} was alone at {place2}, and {he} could not find the way.
Many weeks later {a} fell into deep water at {place2}. "Help!" {he} cried, but no one was there.

But the {animal} had not forgotten. It came running through the dark and showed {him} the way home.
Who came to help? It was the {animal}! It pulled {him} by the sleeve until {he} was safe.
The {animal} heard {his} voice. "You helped me," it said, "and now I will help you." And it did.
"""

GIFT = """
The next day was the birthday of {his} friend {b}, and {a} had no gift.
{His} friend {b} had a birthday soon. "What can I give {b_him}?" asked {a}.
{a} wanted to make a gift for {his} friend {b}. "It must be something special," {he} said.

{He} had no money, so {he} decided to make a {adj} {thing}.
"I will make {b_him} a {thing}," {he} said. "A {adj} {thing}, just like the one at {place}."
At {place} {he} had seen a {adj} {thing}. "I can make one like that," {he} thought.

{He} worked all day. But the first {thing} fell apart, and the second one was too small.
First {he} used paper, but the rain came in and the {thing} was ruined.
It was not easy. {He} cut and glued and painted, but it did not look like a {thing} at all.

{a} wanted to give up. "I am no good at this," {he} said.
{He} threw it in the corner and put {his} head on the table.
"It is ugly," said {a}, and a tear ran down {his} nose.

Then {his} {elder} sat down next to {him}. "Slowly," said {his} {elder}. "Try once more, and I will hold the light."
A {animal} looked in at the window. "Do not stop now," said the {animal}. "You are nearly there."
"Nobody makes a good {thing} the first time," said {his} {elder}. "Come, we will do it together."

So {a} tried again, and this time it worked. The {thing} was {adj} and beautiful.
So {he} began again, slowly and with care. When the sun went down, the {thing} was ready.
{He} tried a third time. At midnight the {thing} was done, and {he} fell asleep on the floor.

The next morning {a} gave it to {b}. "Did you make this yourself?" asked {b}. "It is the best {thing} in the world!"
When {b} opened the box, {b_his} eyes grew wide. "A {adj} {thing}!" {b_he} said. "I will keep it forever."
{b} held the {thing} in both hands. "Thank you, {a}," {b_he} said. "No one ever made me anything before."
"""

STORM = """
{a} and {his} friend {b} went to {place} to look for berries.
{a} met {his} friend {b}, and together they walked to {place}.
"Let us go to {place}," said {his} friend {b}. {a} took some {food}, and off they went.

At first the sky was blue. Then the wind began to blow, and black clouds came over the hill.
They played there for a long time and did not see the dark clouds.
Suddenly it grew dark. There was a loud crash of thunder, and the rain began to fall.

"We must find a dry place," said {b}. They ran until they saw an old hut.
"Quick!" said {a}. "I know a cave near {place2}." They held hands and ran.
"I am cold," said {b}. {a} gave {b_him} {his} coat, and they hid under a big tree.

Inside it was dark. Something moved in the corner. Two yellow eyes looked at them.
They were not alone. Somebody was breathing in the dark.
"Who is there?" asked {a}. {His} voice shook a little. "It is only me," said somebody.

It was a {animal}, and it was even more afraid than they were.
Out of the dark came a {animal}, wet from nose to tail.
A big old {animal} stepped into the light. "Come closer," it said. "I do not bite."

They shared their {food} with the {animal}, and the {animal} told them stories of long ago.
{a} had some {food} in {his} bag. They ate it together, and it was warm and good.
"Are you hungry?" asked {a}. {He} gave the {animal} half of {his} {food}, and they were friends.

When the storm was over, a rainbow stood over {place}. They waved to the {animal} and went home.
In the morning the rain had stopped. The {animal} walked with them as far as {place}.
At last the sun came out again. "Thank you for the company," said the {animal}, and it ran away.
"""

BRAVE = """
There was only one thing wrong: {a} was afraid of the dark.
{a} was not afraid of bears or bees. But {he} was very much afraid of the dark.
Every night {a} asked for a light, because {he} feared the dark.

{His} best friend was a {animal}. They played together every day at {place}.
{He} had a {animal}, and {he} loved it more than anything else.
{He} did not have many friends, but {he} had a {animal} who followed {him} everywhere.

One evening the {animal} did not come home. {a} called and called, but nobody answered.
One night {a} heard a cry from far away. It was the {animal}!
Then one night the bed of the {animal} was empty, and the door was open.

"It must be at {place2}," thought {a}. But outside it was as black as ink.
{a} looked out of the window. There was no moon and there were no stars.
"Somebody has to go and look," said {his} {elder}. {a} felt {his} knees shake.

{He} took a {adj} {thing} in one hand and counted to ten. Then {he} stepped out into the night.
"I am afraid," said {a}, "but I will go." {He} took {his} {adj} {thing} and opened the door.
{He} held {his} {adj} {thing} tight, took a deep breath, and walked into the dark.

Step by step {he} went to {place2}. An owl called, and a branch cracked, but {he} did not turn back.
{He} sang a song to keep {his} courage up. It was a long way to {place2}, but {he} did not stop.
The trees looked like giants. "You are only trees," said {a}, and {he} went on.

There was the {animal}, caught between two stones. {a} pulled and pulled until it was free.
At {place2} {he} found the {animal}, stuck in the mud. {He} dug with {his} hands until it could jump out.
And there, at {place2}, the {animal} sat and shook with fear. "I am here," said {a}, and {he} held it tight.

On the way home the dark did not seem so dark any more.
"You are the bravest {kid} I know," said {his} {elder}. {a} was still a little afraid, but not so much.
After that night {a} did not need a light. "The dark is only the day with its eyes shut," {he} said.
"""

SHARING = """
One thing was true of {a}: {he} did not like to share.
{a} had a whole basket of {food}, and {he} wanted to eat it all alone.
{His} {elder} gave {him} a big bag of {food}. "Share it with your friends," said {his} {elder}.

{He} went to {place}, sat down in the shade, and began to eat.
{a} carried the {food} to {place}, where nobody could see {him}.
"I will go to {place}," {he} thought, "and eat my {food} there."

Soon a hungry {animal} came along. "That smells good," it said. "May I have a little?"
Then {his} friend {b} came by. {b} had not eaten all day, and {b_he} looked at the {food}.
A thin {animal} sat down in front of {him}. It did not say a word. It only looked at the {food}.

"No," said {a}. "It is mine." So the visitor went away with its head down.
"There is not enough for two," said {a}, and {he} turned {his} back.
{a} shook {his} head and held the {food} tight. "Go away," {he} said.

But now the {food} did not taste good any more. {a} felt bad inside.
{a} took a bite, but {he} was not hungry now. It was very quiet at {place}.
{He} was alone with {his} {food}, and it was no fun at all to be alone.

"Wait!" called {a}. "Come back! I am sorry. There is enough for everybody."
So {a} jumped up and ran after the visitor. "I was wrong," {he} said. "Please eat with me."
{a} thought for a long time. Then {he} stood up, took the {food}, and said, "Let us share it."

They sat side by side and ate until everything was gone. It had never tasted so good.
They shared the last bite, and then they played at {place2} until the stars came out.
"It is better when we share," said {a}. And {he} meant it.
"""

QUARREL = """
{a} and {b} were best friends. Every day they played together at {place}.
{a} had a best friend named {b}. They shared everything they had.
Everyone knew that {a} and {b} were best friends. Where one went, the other went too.

One {time} they found a {adj} {thing}. "It is mine," said {a}. "No, it is mine," said {b}.
But one day they both wanted the same {adj} {thing}. "I saw it first!" said {b}.
Then they found a {adj} {thing} in the grass. {a} pulled, and {b} pulled, and the {thing} broke.

"You are not my friend any more!" cried {a}, and {he} ran home.
{b} became very angry. "I will never play with you again," {b_he} said.
They shouted until their faces were red. Then {a} went one way and {b} went the other.

The next day {a} went to {place} alone. It was no fun without {b}.
{a} tried to play alone, but the day was long and empty.
Three days went by. {a} looked at the {thing} and did not want it any more.

"What is the matter?" asked {his} {elder}. "A {thing} is only a {thing}, but a friend is a friend."
A {animal} had seen it all. "Foolish {kid}," it said. "Go and say that you are sorry."
A {animal} came and sat by {him}. "I saw {b} at {place2}," it said, "and {b_he} was crying."

So {a} took the {thing} and went to look for {b}. {He} found {b_him} at {place2}.
{a} ran to {place2} as fast as {he} could. There sat {b}, all alone.
At that moment there was a knock. It was {b}. {b_He} had come all the way from {place2}.

"I am sorry," said {a}. "I am sorry too," said {b}. And then they both began to laugh.
"You can have it," said {a}. "No, you can have it," said {b}. In the end they gave the {thing} to a baby {animal}.
"Let us never fight again," said {b}. They mended the {thing} together, and it belonged to both of them.
"""

SECRET = """
In the attic {a} found a {adj} {thing}. There was an old map inside it.
One {time} {a} was cleaning the kitchen when {he} found a map behind the stove.
A {animal} came to the door with a letter in its mouth. In the letter there was a map.

The map showed the way to {place}, and there was a red cross on it.
"Look," said {a}. "The red cross is at {place}. There must be a treasure!"
On the map somebody had written: Go to {place} and dig under the oldest tree.

{a} told {his} friend {b}, and the two of them left before breakfast.
"I will come with you," said {his} friend {b}. {b_He} brought a rope, and {a} brought some {food}.
{He} ran to {his} friend {b}. "Get your boots," {he} said. "We are going on a journey."

The road was long. They crossed a river, climbed a hill, and passed {place2}.
They walked past {place2} and through a dark wood, where a {animal} showed them the way.
First they got lost near {place2}. But a friendly {animal} pointed to the right path.

At {place} they began to dig. After a while they hit something hard.
When they came to {place}, the sun was going down. They dug and dug until their hands were sore.
"Here it is," said {b}. Under the roots there was a wooden box.

They opened the box. There was no gold in it, but a {adj} {thing} and a note.
{a} opened it with shaking hands. Inside lay a {adj} {thing}, and it shone like the sun.
The box was full of old pictures, and on top of them lay a {adj} {thing}.

The note said: The real treasure is the friend who came with you. {a} and {b} looked at each other and smiled.
"It is not gold," said {b}, "but it is ours." They put the {thing} above the door for everyone to see.
"I know this {thing}!" said {his} {elder} that night. "I hid it there when I was as small as you."
"""

RACE = """
Every year there was a big race from {place} to {place2}, and {a} wanted to win it.
One day there was to be a race. It began at {place} and ended at {place2}.
"Tomorrow is the great race," said {his} {elder}. "Everybody will be at {place}."

But {a} was small, and {his} legs were short. "You will be last," laughed {his} friend {b}.
"I am the fastest of all," said {his} friend {b}. "Nobody can beat me." {a} did not say anything.
{a} practised every morning. {His} friend {b} practised too, and {b_he} was much faster.

The race began. {b} ran like the wind, and {a} was far behind.
One, two, three, and off they went! Soon {b} was in front, and {a} could hardly see {b_him}.
"Ready, steady, go!" called a {animal}. Dust flew up, and {b} was gone.

Half way to {place2}, {b} fell over a stone and hurt {b_his} knee.
Then {a} saw {b} on the ground. "My foot is stuck," said {b}, "and I cannot get it out."
But at the bridge {b} slipped and fell into the water.

{a} could have run past. Instead {he} stopped and helped {b_him} up.
{a} looked at the road, and {he} looked at {b}. Then {he} went back to help.
"Now I can win," thought {a}. But {he} could not leave a friend behind, so {he} stopped.

"Why did you stop?" asked {b}. "Because you needed me," said {a}. And they went on together, arm in arm.
"You could have won," said {b}. "I know," said {a}, and {he} laughed. They walked the last mile side by side.
{b} put an arm around {a}, and so they came to {place2}, the last of all.

Everybody cheered. The prize was a {adj} {thing}, and {b} gave it to {a}.
The judges talked for a long time. Then they gave both of them a {adj} {thing}.
They did not win the {adj} {thing}, but they won something better: a friend.
"""

HELPER = """
{a} wanted to be useful, but everyone said that {he} was too little.
"Can I help?" {a} asked every day. "You are too small," they always said.
{a} was the smallest of all, and nobody ever asked {him} for help.

"Go and play," said {his} {elder}, who was making {food} for the feast.
{He} asked {his} friend {b}, but {b} was carrying water and had no time.
So {a} went to {place} and sat there all alone with {his} {adj} {thing}.

That day something bad happened. The key of the great gate fell into a narrow hole.
Then there was trouble. A baby {animal} had crawled into a pipe and could not get out.
Suddenly there was a great noise at {place2}. The bell was stuck, and nobody could reach it.

{His} friend {b} tried first, but {b_his} arm was too short. Others tried, and they were all too big.
{His} friend {b} tried with ropes and with sticks. The others tried all morning. Nothing helped.
"What shall we do?" asked {his} friend {b}. The strongest of them shook their heads.

"Let me try," said {a}. Nobody laughed this time.
Then {a} stepped forward. "I am small," {he} said, "and that is just what you need."
{a} had an idea. "I need my {adj} {thing}," {he} said, "and somebody to hold my feet."

{He} crawled in, deeper and deeper, until only {his} shoes could be seen.
It was dark and narrow, but {a} was not afraid. {He} stretched out {his} hand as far as {he} could.
Very slowly {he} climbed up and in, and everybody held their breath.

"I have it!" called {a}. {b} pulled {him} out, and everyone clapped.
And then it was done. "Hurrah for {a}!" they shouted, and {b} lifted {him} up high.
When {he} came out again, {he} was black from head to toe, but {he} was smiling.

From then on nobody said that {a} was too small.
"Being small is a fine thing," said {his} {elder}, and gave {him} the first plate of {food}.
Now, when something goes wrong at {place2}, they always call {a} first.
"""

WISH = """
At {place} there was an old well, and people said that it could grant a wish.
One evening {a} saw a star fall down behind {place}. {He} ran to look for it.
A very old {animal} lived at {place}. It was said to know some magic.

"I wish I had a {adj} {thing}," said {a}.
"Make a wish," said a soft voice. {a} thought for a moment. "I wish for a {adj} {thing}," {he} said.
{a} had only one wish. {He} wanted a {adj} {thing}, and {he} said so out loud.

The next morning there it was, a {adj} {thing}, right in front of the door.
There was a flash of light, and in {his} hand lay a {adj} {thing}.
Nothing happened at first. But when {he} came home, a {adj} {thing} stood on the table.

But it was no common {thing}. It could talk, and it never stopped.
For a week {a} was happy. Then {he} saw that {his} friend {b} was sad.
{a} played with it all day long, and {he} forgot all {his} friends.

"You never come to see me any more," said {his} friend {b}. {a} looked at the ground.
{His} friend {b} was ill and lay in bed. "If only I could see {place2} again," {b_he} said.
One day {his} friend {b} said, "I liked you better before you had that {thing}."

So {a} went back to {place}. "Take the {thing} back," {he} said. "I wish that {b} were happy."
{a} did not think twice. {He} gave the {thing} away and spent the whole day with {b}.
That night {a} made another wish, and this time it was not for {him} at all. It was for {b}.

In the morning {b} was laughing again, and they went to {place2} to play.
And that wish came true as well. {b} came running down the road, and they hugged.
"That was the better wish," said the voice, and it was never heard again.
"""

PLOTS: tuple[str, ...] = (LOST, RESCUE, GIFT, STORM, BRAVE, SHARING, QUARREL, SECRET, RACE, HELPER, WISH)
